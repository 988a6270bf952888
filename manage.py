#!/usr/bin/env python
from flywheel.command import main

if __name__ == "__main__":
    main()
