from django.db import migrations


class Migration(migrations.Migration):
    """PostgreSQL tries in vain to compress words: it cost as much as storing them, and saved
    nothing. The table and its partitions only; rows stay as they are.
    """

    dependencies = [("trajectories", "0002_machine_sweeps")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE trajectories_searchtext ALTER words SET STORAGE EXTERNAL",
            "ALTER TABLE trajectories_searchtext ALTER words SET STORAGE EXTENDED",
        )
    ]
