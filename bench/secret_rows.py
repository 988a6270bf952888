"""Made-up traffic of a week of three teams: SECRETS, rows with one secret each, and ORDINARY, rows without. Pure, of a fixed seed.

Written by somebody who had not seen the rules, and not used to write them (`python -m bench.redaction`). No secret here was ever issued.
"""
import base64
import json
import random
import re
import string
import uuid as _uuid
import zlib
from urllib.parse import quote

R = random.Random(70425)
AN = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPD = string.ascii_uppercase + string.digits
LOD = string.ascii_lowercase + string.digits
B64U = AN + "-_"


def ch(a, n):
    return "".join(R.choice(a) for _ in range(n))


def b64(n):
    return base64.b64encode(R.randbytes(n)).decode()


def b64u(b):
    return base64.urlsafe_b64encode(b).decode().rstrip("=")


# ---------------------------------------------------------------- slots
FIRST = "Maya Tomasz Priya Lukas Ines Chen Omar Hannah Diego Yuki Fatima Erik Noor Paula Sven Aisha Marta Leo Jana Kofi".split()
LAST = "Okafor Lindqvist Sharma Weber Costa Wang Haddad Novak Ramirez Tanaka Silva Bauer Kowalska Moreau Jensen Petrov Ricci Osei".split()
SVC = "billing-api checkout orders-svc auth-gateway search-indexer notifier inventory report-worker media-proxy ledger".split()
CITY = "Lyon Hamburg Porto Kraków Leeds Osaka Austin Toronto Gdańsk Sevilla Utrecht Graz".split()
PROD = ["Trailrunner 3 jacket", "Aero kettle 1.7L", "Nimbus desk lamp", "Pro annual plan", "Comfort mattress topper", "USB-C dock 11-in-1", "Kids rain boots", "Starter plan", "Espresso grinder G2"]
FILES = "src/cart/totals.py src/api/routes.ts lib/parser.rb internal/queue/worker.go app/models/invoice.py web/components/Table.tsx pkg/store/cache.go src/utils/dates.ts".split()
BR = "fix/rounding feat/export-csv chore/bump-deps fix/timezone feat/dark-mode refactor/queue-retry".split()
HOSTS = "web-03 db-replica-2 ip-10-2-14-77 build-runner-5 bastion-eu kafka-1 edge-fra-02 gpu-node-4".split()


def _name():
    return R.choice(FIRST) + " " + R.choice(LAST)


def _email():
    return (R.choice(FIRST) + "." + R.choice(LAST)).lower() + "@" + R.choice(["example.com", "nordwind.io", "gmail.com", "outlook.com", "web.de", "acme-retail.com"])


SLOTS = {
    "name": _name, "first": lambda: R.choice(FIRST), "email": _email,
    "order": lambda: R.choice(["#", "ORD-", "SO-"]) + str(R.randint(100000, 999999)),
    "sha": lambda: ch(HEX, 40), "short": lambda: ch(HEX, 7), "sha256": lambda: ch(HEX, 64), "md5": lambda: ch(HEX, 32),
    "uuid": lambda: str(_uuid.UUID(int=R.getrandbits(128), version=4)),
    "ip": lambda: "10.%d.%d.%d" % (R.randint(0, 40), R.randint(0, 255), R.randint(2, 250)),
    "host": lambda: R.choice(HOSTS), "svc": lambda: R.choice(SVC), "city": lambda: R.choice(CITY), "prod": lambda: R.choice(PROD),
    "date": lambda: "2025-%02d-%02d" % (R.randint(1, 12), R.randint(1, 28)),
    "time": lambda: "%02d:%02d:%02d" % (R.randint(0, 23), R.randint(0, 59), R.randint(0, 59)),
    "d": lambda: str(R.randint(2, 9)), "dd": lambda: str(R.randint(11, 97)), "ddd": lambda: str(R.randint(102, 989)),
    "dddd": lambda: str(R.randint(1050, 9870)), "amt": lambda: "%d.%02d" % (R.randint(8, 380), R.randint(0, 99)),
    "pod": lambda: R.choice(SVC) + "-" + ch("bcdfghjklmnpqrstvwxz2456789", 10) + "-" + ch("bcdfghjklmnpqrstvwxz2456789", 5),
    "ticket": lambda: R.choice(["OPS-", "CS-", "WEB-", "PLAT-"]) + str(R.randint(100, 9999)),
    "branch": lambda: R.choice(BR), "file": lambda: R.choice(FILES),
    "phone": lambda: "+49 30 %d %d" % (R.randint(100, 999), R.randint(1000, 9999)),
    "ver": lambda: "%d.%d.%d" % (R.randint(0, 9), R.randint(0, 30), R.randint(0, 20)),
    "track": lambda: "1Z" + ch(UPD, 6) + str(R.randint(10**7, 10**8 - 1)),
    "sri": lambda: "sha512-" + b64(64), "pub": lambda: "AAAAC3NzaC1lZDI1NTE5AAAAI" + b64u(R.randbytes(33))[:43].replace("-", "x").replace("_", "y"),
    "fp": lambda: "SHA256:" + b64(32).rstrip("="), "acct": lambda: str(R.randint(2 * 10**11, 9 * 10**11)),
    "inst": lambda: "i-0" + ch(HEX, 16), "req": lambda: "req_" + ch(AN, 14), "sf": lambda: "0015g00000" + ch(AN, 8),
    "akid": lambda: "AK" + "IA" + ch("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16),
    "twsid": lambda: "AC" + ch(HEX, 32), "tenant": lambda: str(_uuid.UUID(int=R.getrandbits(128), version=4)),
}


def fill(t, vals):
    def sub(m):
        k = m.group(1)
        if k not in vals:
            vals[k] = SLOTS[k if k in SLOTS else k[:-1]]()
        return vals[k]
    return re.sub("«(\\w+)»", sub, t)


ROLE = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}


def build(team, text, vals):
    """@u/@a/@t/@s start a message; '@c name {json}' or '@c name' + raw command adds a tool call. Slots resolve per string."""
    msgs, meta = [], {"team": team, "session": ch(LOD, 8), "ts": SLOTS["date"]() + "T" + SLOTS["time"]() + "Z"}
    last = None
    for m in re.finditer(r"^@([uatscm])(?: |$)(.*?)(?=^@[uatscm](?: |$)|\Z)", text.strip("\n") + "\n", re.S | re.M):
        k, body = m.group(1), m.group(2).strip("\n")
        if k == "m":
            a, b = body.split("=", 1)
            meta[a] = fill(b, vals)
        elif k == "c":
            name, _, rest = body.partition("\n") if "{" not in body.split("\n")[0] else body.partition(" ")
            rest = rest.strip("\n")
            if rest.startswith("{") and name.strip() != "bash":
                args = json.loads(rest)

                def walk(o):
                    if isinstance(o, str):
                        return fill(o, vals)
                    if isinstance(o, list):
                        return [walk(x) for x in o]
                    if isinstance(o, dict):
                        return {a: walk(b) for a, b in o.items()}
                    return o
                args = walk(args)
            else:
                args = {"command": fill(rest, vals)}
            if not msgs or msgs[-1]["role"] != "assistant":
                msgs.append({"role": "assistant", "content": ""})
            last = "call_" + ch(LOD, 12)
            msgs[-1].setdefault("tool_calls", []).append({"id": last, "type": "function", "function": {
                "name": name.strip(), "arguments": json.dumps(args, ensure_ascii=R.random() < .5)}})
        else:
            msgs.append({"role": ROLE[k], "content": fill(body, vals)})
    return {"messages": msgs, "metadata": meta}


# ---------------------------------------------------------------- secret generators
WORDS = "Winter Falcon Harbor Tiger Lisboa Copper Mango Pepper Violet Rocket Granit Sonne Berlin Cactus Maple Orca Panda Juniper Quartz Salsa Bremen Turtle Ginger Saturn Walnut".split()


def ph():  # what people invent
    w, v = R.sample(WORDS, 2)
    return R.choice([
        lambda: w + str(R.randint(1980, 2026)) + R.choice("!?#*"), lambda: w.lower() + R.choice("-_.") + v.lower() + str(R.randint(10, 999)),
        lambda: w + "@" + str(R.randint(100, 9999)), lambda: w.replace("a", "4").replace("o", "0") + v[:3] + R.choice("!$%") + str(R.randint(1, 99)),
        lambda: v + w + str(R.randint(1, 99)) + R.choice("!#")])()


def pr():  # what generators make
    n = R.choice([12, 14, 16, 16, 20, 24, 32])
    return R.choice(string.ascii_letters) + ch(AN + R.choice(["", "", "!#%*-_+="]), n - 1)


def pa():
    return ch(AN, R.choice([16, 20, 24, 32]))


def pp():  # passphrase
    return "-".join(x.lower() for x in R.sample(WORDS, 4))


def purl():
    return quote(ch(AN, 7) + R.choice("@#/?") + ch(AN, 6), safe="")


def ghp(p):
    e = ch(AN, 30)
    n, a, s = zlib.crc32(e.encode()), string.digits + string.ascii_uppercase + string.ascii_lowercase, ""
    while n:
        n, r = divmod(n, 62)
        s = a[r] + s
    return "gh" + p + "_" + e + s.rjust(6, "0")


def jwt(claims=None):
    j = lambda o: b64u(json.dumps(o, separators=(",", ":")).encode())
    c = claims or {"sub": str(R.randint(1000, 99999)), "role": "admin", "iat": 1750000000 + R.randint(0, 9**7), "exp": 1790000000}
    return j({"alg": "HS256", "typ": "JWT"}) + "." + j(c) + "." + b64u(R.randbytes(32))


def card(prefix, n=16, sep=""):
    d = prefix + ch(string.digits, n - 1 - len(prefix))
    t = 0
    for i, x in enumerate(reversed(d)):
        v = int(x) * (2 if i % 2 == 0 else 1)
        t += v - 9 if v > 9 else v
    d += str(-t % 10)
    if n == 15:
        return sep.join([d[:4], d[4:10], d[10:]])
    return sep.join(d[i:i + 4] for i in range(0, 16, 4))


def _len(n):
    if n < 128:
        return bytes([n])
    b = n.to_bytes((n.bit_length() + 7) // 8, "big")
    return bytes([128 | len(b)]) + b


def _int(bits):
    n = R.getrandbits(bits) | (1 << (bits - 1)) | 1
    b = n.to_bytes(bits // 8 + 1, "big")
    return b"\x02" + _len(len(b)) + b


def pem(kind, der):
    s = base64.b64encode(der).decode()
    w = 70 if kind == "OPENSSH" else 64
    t = (kind + " " if kind else "") + "PRIV" + "ATE KEY"
    return "-----BEGIN " + t + "-----\n" + "\n".join(s[i:i + w] for i in range(0, len(s), w)) + "\n-----END " + t + "-----"


def rsa_der():
    b = b"\x02\x01\x00" + _int(2048) + b"\x02\x03\x01\x00\x01" + _int(2048) + b"".join(_int(1024) for _ in range(5))
    return b"\x30" + _len(len(b)) + b


def rsa():
    return pem("RSA", rsa_der())


def pkcs8():
    k = rsa_der()
    b = b"\x02\x01\x00" + bytes.fromhex("300d06092a864886f70d0101010500") + b"\x04" + _len(len(k)) + k
    return pem("", b"\x30" + _len(len(b)) + b)


def ec():
    return pem("EC", bytes.fromhex("30770201010420") + R.randbytes(32) + bytes.fromhex("a00a06082a8648ce3d030107a14403420004") + R.randbytes(64))


def ossh():
    s = lambda x: len(x).to_bytes(4, "big") + x
    pub, c = R.randbytes(32), R.randbytes(4)
    pk = s(b"ssh-ed25519") + s(pub)
    pv = c + c + pk + s(R.randbytes(32) + pub) + s(b"deploy@ci")
    pv += bytes(range(1, 1 + (-len(pv)) % 8))
    return pem("OPENSSH", b"openssh-key-v1\0" + s(b"none") + s(b"none") + s(b"") + b"\0\0\0\1" + s(pk) + s(pv))


G = {
    "openai": lambda: "sk-" + "proj-" + ch(B64U, 74) + "T3Blbk" + "FJ" + ch(B64U, 74),
    "anthropic": lambda: "sk-" + "ant-api03-" + ch(B64U, 93) + "AA",
    "aws": lambda: ch(AN + "+/", 40), "akid": SLOTS["akid"], "awssess": lambda: "IQoJb3JpZ2luX2Vj" + b64(330),
    "ghp": lambda: ghp("p"), "gho": lambda: ghp("o"), "ghs": lambda: ghp("s"),
    "ghpat": lambda: "github" + "_pat_" + "11" + ch(UPD, 20) + "_" + ch(AN, 59),
    "glpat": lambda: "gl" + "pat-" + ch(B64U, 20),
    "xoxb": lambda: "xo" + "xb-" + ch("123456789", 12) + "-" + ch("123456789", 13) + "-" + ch(AN, 24),
    "slackhook": lambda: "https://hooks.slack" + ".com/services/T" + ch(UPD, 10) + "/B" + ch(UPD, 10) + "/" + ch(AN, 24),
    "xapp": lambda: "xa" + "pp-1-A" + ch(UPD, 10) + "-" + ch("123456789", 13) + "-" + ch(HEX, 64),
    "sklive": lambda: "sk_" + "live_51" + ch(AN, 14) + ch(AN, 83), "rklive": lambda: "rk_" + "live_51" + ch(AN, 97),
    "sktest": lambda: "sk_" + "test_51" + ch(AN, 97), "whsec": lambda: "wh" + "sec_" + ch(AN, 32),
    "aiza": lambda: "AI" + "zaSy" + ch(B64U, 33), "gocspx": lambda: "GOC" + "SPX-" + ch(B64U, 28),
    "ya29": lambda: "ya" + "29.a0" + ch(B64U, 190), "g1": lambda: "1/" + "/0" + ch(B64U, 100),
    "azstor": lambda: b64(64), "azcs": lambda: ch(AN, 3) + "8" + "Q~" + ch(AN + "_.-~", 33) + ch(AN, 1), "sas": lambda: quote(b64(32), safe=""),
    "sg": lambda: "S" + "G." + ch(B64U, 22) + "." + ch(B64U, 43), "hex32": lambda: ch(HEX, 32), "hex40": lambda: ch(HEX, 40), "hex64": lambda: ch(HEX, 64),
    "npm": lambda: "np" + "m_" + ch(AN, 36), "pypi": lambda: "py" + "pi-AgEIcHlwaS5vcmc" + ch(B64U, 150), "dckr": lambda: "dckr" + "_pat_" + ch(B64U, 27),
    "hf": lambda: "h" + "f_" + ch(string.ascii_letters, 34), "sntrys": lambda: "snt" + "ryu_" + ch(HEX, 64),
    "tg": lambda: str(R.randint(5 * 10**9, 8 * 10**9)) + ":AA" + ch(B64U, 33),
    "disc": lambda: b64u(str(R.randint(10**17, 9 * 10**17)).encode()) + ".G" + ch(B64U, 5) + "." + ch(B64U, 38),
    "dop": lambda: "do" + "p_v1_" + ch(HEX, 64), "cf": lambda: ch(B64U, 39) + ch(AN, 1), "uuid": lambda: SLOTS["uuid"](),
    "hvs": lambda: "hv" + "s.CAESI" + ch(B64U, 88), "shpat": lambda: "shp" + "at_" + ch(HEX, 32), "hub": lambda: "pat" + "-eu1-" + SLOTS["uuid"](),
    "zd": lambda: ch(AN, 40), "ntn": lambda: "nt" + "n_" + ch(string.digits, 11) + ch(AN, 35), "lin": lambda: "lin" + "_api_" + ch(AN, 40),
    "glsa": lambda: "gl" + "sa_" + ch(AN, 32) + "_" + ch(HEX, 8), "gsk": lambda: "gs" + "k_" + ch(AN, 52),
    "b64_32": lambda: b64(32), "b64pw": lambda: base64.b64encode(pr().encode()).decode(),
    "basic": lambda: base64.b64encode(("svc-deploy:" + pr()).encode()).decode(),
    "jwt": jwt, "jwtsvc": lambda: jwt({"iss": "supabase", "ref": ch(string.ascii_lowercase, 20), "role": "service_role", "iat": 1741000000, "exp": 2056000000}),
    "djkey": lambda: "django" + "-insecure-" + ch(LOD + "!@#$%^&*(-_=+)", 50), "kubeadm": lambda: ch(LOD, 6) + "." + ch(LOD, 16),
    "totp": lambda: ch("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 32), "reset": lambda: b64u(R.randbytes(32)), "sess": lambda: "s%3A" + ch(B64U, 32) + "." + quote(b64(32), safe=""),
    "php": lambda: ch(LOD, 26), "pin": lambda: str(R.randint(100000, 999999)), "backup": lambda: ch(LOD, 5) + "-" + ch(LOD, 5),
    "ph": ph, "pr": pr, "pa": pa, "pp": pp, "purl": purl, "rsa": rsa, "pkcs8": pkcs8, "ec": ec, "ossh": ossh,
    "visa": lambda: card("4" + R.choice("0159")), "visasp": lambda: card("4" + R.choice("0159"), 16, " "), "mcd": lambda: card("5" + R.choice("12345"), 16, "-"),
    "mcsp": lambda: card("5" + R.choice("12345"), 16, " "), "amex": lambda: card("37", 15, " "),
}

# each block: "kind | team | generator", then the conversation
S_TXT = r'''
openai-key | coding | openai
@u tests fail with 401 from the embedding client, have a look
@c bash
cat .env
@t APP_ENV=local
LOG_LEVEL=debug
OPENAI_API_KEY=«S»
EMBED_MODEL=text-embedding-3-small
@a The key is loaded but the client reads OPENAI_KEY. I'll fix the settings module.
====
openai-key | coding | openai
@u use this one for now: «S» and run the eval again, we have budget until friday
@a Running the eval with the new key.
====
openai-key | devops | openai
@c bash
kubectl -n prod set env deploy/«svc» OPENAI_API_KEY=«S»
@t deployment.apps/«svc» env updated
====
openai-key | coding | openai
@t src/llm.py
  1  from openai import OpenAI
  2
  3  client = OpenAI(api_key="«S»")
  4
  5  def ask(q: str) -> str:
@a This hard-codes the key on line 3; moving it to the environment.
====
anthropic-key | coding | anthropic
@c bash
export ANTHROPIC_API_KEY='«S»' && python scripts/summarise.py --limit 20
@t Summarised 20 documents in 41s
====
anthropic-key | coding | anthropic
@t curl: (22) The requested URL returned error: 401
> POST /v1/messages HTTP/2
> host: api.anthropic.com
> x-api-key: «S»
> anthropic-version: 2023-06-01
> content-type: application/json
====
anthropic-key | browser | anthropic
@u Connect Claude in the Zapier account settings
@c browser_fill {"selector": "input[placeholder='Paste your API key']", "value": "«S»"}
@t ok
====
aws-secret | devops | aws
@c bash
cat ~/.aws/credentials
@t [default]
aws_access_key_id = «akid»
aws_secret_access_key = «S»

[staging]
role_arn = arn:aws:iam::«acct»:role/deploy
source_profile = default
====
aws-secret | devops | aws
@u export AWS_ACCESS_KEY_ID=«akid»
export AWS_SECRET_ACCESS_KEY=«S»
export AWS_DEFAULT_REGION=eu-central-1
then list the buckets pls
@c bash
aws s3 ls
====
aws-secret | devops | aws
@c bash
aws iam create-access-key --user-name ci-uploader
@t {
    "AccessKey": {
        "UserName": "ci-uploader",
        "AccessKeyId": "«akid»",
        "Status": "Active",
        "SecretAccessKey": "«S»",
        "CreateDate": "«date»T«time»+00:00"
    }
}
====
aws-secret | coding | aws
@t diff --git a/settings/storage.py b/settings/storage.py
index «short1»..«short2» 100644
--- a/settings/storage.py
+++ b/settings/storage.py
@@ -4,5 +4,5 @@
 s3 = boto3.client(
     "s3",
-    aws_secret_access_key="«S»",
+    aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
     region_name="eu-west-1",
 )
====
aws-secret-prose | devops | aws
@u here are the s3 creds for the backup bucket: «akid» / «S»
@a Thanks. I'll configure rclone with them.
====
aws-session-token | devops | awssess
@c bash
aws sts assume-role --role-arn arn:aws:iam::«acct»:role/readonly --role-session-name agent --query Credentials.SessionToken --output text
@t «S»
====
github-pat | coding | ghp
@c bash
git clone https://x-access-token:«S»@github.com/nordwind/«svc».git
@t Cloning into '«svc»'...
remote: Enumerating objects: «dddd», done.
====
github-pat | coding | ghp
@u My GitHub token is «S», please open the PR with it
@a On it.
====
github-pat | devops | ghp
@c bash
curl -s -H "Authorization: token «S»" https://api.github.com/repos/nordwind/infra/actions/runs?per_page=3 | jq '.workflow_runs[].conclusion'
@t "success"
"failure"
"success"
====
github-pat | coding | ghp
@c bash
git remote -v
@t origin	https://«S»@github.com/nordwind/docs.git (fetch)
upstream	git@github.com:docs/docs.git (fetch)
====
github-fine-grained | coding | ghpat
@c bash
env | sort | head -40
@t EDITOR=vim
GH_TOKEN=«S»
HOME=/home/dev
LANG=C.UTF-8
====
github-fine-grained | coding | ghpat
@c write_file {"path": ".github/renovate.json", "content": "{\n  \"hostRules\": [{\"matchHost\": \"github.com\", \"token\": \"«S»\"}]\n}\n"}
@t written
====
github-app-token | devops | ghs
@t Run actions/create-github-app-token@v1
token: «S»
Post job cleanup.
====
gitlab-pat | devops | glpat
@c bash
curl --header "PRIVATE-TOKEN: «S»" "https://gitlab.nordwind.io/api/v4/projects/«ddd»/pipelines"
@t [{"id":«dddd»,"status":"success","ref":"main"}]
====
gitlab-pat | devops | glpat
@c bash
docker login registry.gitlab.com -u deploy -p «S»
@t WARNING! Using --password via the CLI is insecure. Use --password-stdin.
Login Succeeded
====
slack-bot-token | devops | xoxb
@c http_request {"method": "POST", "url": "https://slack.com/api/chat.postMessage", "headers": {"Authorization": "Bearer «S»"}, "json": {"channel": "#ops", "text": "«svc» rolled back"}}
@t {"ok": true}
====
slack-bot-token | coding | xoxb
@t # config/bot.yml
slack:
  bot_token: «S»
  channel: C04«dddd»AB
  retries: 3
====
slack-webhook | devops | slackhook
@c bash
curl -X POST -H 'Content-type: application/json' --data '{"text":"deploy of «svc» done"}' «S»
@t ok
====
slack-webhook | devops | slackhook
@t alertmanager.yml:
receivers:
  - name: ops
    slack_configs:
      - api_url: «S»
        channel: '#alerts'
====
slack-app-token | coding | xapp
@u SLACK_APP_TOKEN="«S»"
socket mode does not connect with it. any idea?
@a Check that connections:write is granted.
====
stripe-live | support | sklive
@u The refund script wants a key, finance gave me «S»
@c bash
python refund.py --order «order» --amount «amt»
====
stripe-live | coding | sklive
@t app/config/production.rb
Stripe.api_key = '«S»'
Stripe.max_network_retries = 2
====
stripe-live | devops | sklive
@c bash
curl https://api.stripe.com/v1/charges?limit=3 -u «S»:
@t {"object": "list", "has_more": true}
====
stripe-restricted | devops | rklive
@t secrets.auto.tfvars
stripe_key = "«S»"
region     = "eu-west-1"
====
stripe-test | coding | sktest
@c bash
STRIPE_SECRET_KEY=«S» pytest tests/payments -q
@t «dd» passed in 12.31s
====
stripe-webhook-secret | coding | whsec
@c bash
stripe listen --forward-to localhost:3000/webhooks
@t > Ready! You are using Stripe API Version [2024-06-20]. Your webhook signing secret is «S» (^C to quit)
====
google-api-key | coding | aiza
@t src/firebase.ts
const app = initializeApp({
  apiKey: "«S»",
  authDomain: "nordwind-web.firebaseapp.com",
  projectId: "nordwind-web",
});
====
google-api-key | support | aiza
@c http_get {"url": "https://maps.googleapis.com/maps/api/geocode/json?address=«city»&key=«S»"}
@t {"status": "OK", "results": []}
====
google-api-key | coding | aiza
@c bash
grep -rn "GEMINI" .
@t ./.env.local:7:GEMINI_API_KEY=«S»
./README.md:31:Set GEMINI_API_KEY before starting.
====
google-oauth-client-secret | coding | gocspx
@t {"web":{"client_id":"«acct»-k3jd.apps.googleusercontent.com","project_id":"nordwind","auth_uri":"https://accounts.google.com/o/oauth2/auth","client_secret":"«S»","redirect_uris":["http://localhost:8080/cb"]}}
====
google-access-token | devops | ya29
@c bash
gcloud auth print-access-token
@t «S»
====
google-refresh-token | coding | g1
@t token.json
{"refresh_token": "«S»", "token_uri": "https://oauth2.googleapis.com/token", "scopes": ["https://www.googleapis.com/auth/calendar"]}
====
azure-storage-key | devops | azstor
@c bash
az storage account show-connection-string -n nwbackups -o tsv
@t DefaultEndpointsProtocol=https;EndpointSuffix=core.windows.net;AccountName=nwbackups;AccountKey=«S»
====
azure-client-secret | devops | azcs
@c bash
az login --service-principal -u «uuid» -p '«S»' --tenant «tenant»
@t [{"cloudName": "AzureCloud", "state": "Enabled"}]
====
azure-sas | support | sas
@u customer says the export link is broken: https://nwexports.blob.core.windows.net/out/june.csv?sv=2023-11-03&st=2025-06-01T00%3A00%3A00Z&se=2026-06-30T00%3A00%3A00Z&sr=b&sp=r&sig=«S»
@a The blob was moved to the archive container; I'll create a fresh link.
====
sendgrid-key | devops | sg
@t   mailer:
    provider: sendgrid
    api_key: "«S»"
    from: noreply@nordwind.io
====
twilio-auth-token | support | hex32
@c bash
curl -X POST https://api.twilio.com/2010-04-01/Accounts/«twsid»/Messages.json -u «twsid»:«S» --data-urlencode "Body=Your parcel is on its way" --data-urlencode "To=+4915112345"
@t {"status": "queued"}
====
npm-token | coding | npm
@c bash
cat ~/.npmrc
@t registry=https://registry.npmjs.org/
//registry.npmjs.org/:_authToken=«S»
fund=false
====
pypi-token | coding | pypi
@c bash
twine upload -u __token__ -p «S» dist/*
@t Uploading nordwind-«ver».tar.gz
====
dockerhub-pat | devops | dckr
@c bash
echo «S» | docker login -u nordwindci --password-stdin
@t Login Succeeded
====
huggingface-token | coding | hf
@c bash
huggingface-cli login --token «S» && python train.py --config small.yaml
@t Token is valid (permission: write).
====
huggingface-token | coding | hf
@t notebooks/eval.ipynb
"source": [
  "from huggingface_hub import login\n",
  "login('«S»')\n"
]
====
datadog-key | devops | hex32
@c bash
helm upgrade datadog datadog/datadog --set datadog.apiKey=«S» --set datadog.site=datadoghq.eu
@t Release "datadog" has been upgraded. Happy Helming!
====
sentry-token | coding | sntrys
@t .sentryclirc
[auth]
token=«S»
[defaults]
org=nordwind
====
telegram-bot-token | coding | tg
@u BotFather gave me this: «S»
write a bot that posts the daily menu
@a I'll use python-telegram-bot.
====
discord-bot-token | coding | disc
@t bot.js
const { Client } = require('discord.js');
const client = new Client({ intents: [] });
client.login('«S»');
====
digitalocean-token | devops | dop
@c bash
doctl auth init -t «S»
@t Validating token... OK
====
cloudflare-token | devops | cf
@c bash
curl -X GET "https://api.cloudflare.com/client/v4/user/tokens/verify" -H "Authorization: Bearer «S»"
@t {"result":{"status":"active"},"success":true}
====
heroku-api-key | devops | uuid
@t $ heroku auth:token
 ›   Warning: token will expire soon
HEROKU_API_KEY=«S»
====
vault-token | devops | hvs
@c bash
vault login -format=table
@t Key                  Value
---                  -----
token                «S»
token_accessor       aB3dEfAccessor
token_duration       768h
token_policies       ["default" "ops"]
====
shopify-token | support | shpat
@c http_request {"method": "GET", "url": "https://nordwind.myshopify.com/admin/api/2024-07/orders.json?name=«order»", "headers": {"X-Shopify-Access-Token": "«S»"}}
@t {"orders": []}
====
hubspot-token | support | hub
@s You are the support assistant of Nordwind. CRM: HubSpot. Use the private app token «S» for all calls. Answer in the customer's language.
@u Hallo, ich habe zwei Rechnungen bekommen.
@a Das tut mir leid, ich sehe mir das gleich an.
====
zendesk-token | support | zd
@c bash
curl https://nordwind.zendesk.com/api/v2/tickets/«dddd».json -u agent@nordwind.io/token:«S»
@t {"ticket": {"status": "open", "priority": "normal"}}
====
notion-token | coding | ntn
@u here's the integration secret «S» — sync the roadmap page into docs/
@a Sure.
====
linear-key | coding | lin
@c mcp_config {"server": "linear", "env": {"LINEAR_API_KEY": "«S»"}}
@t configured
====
grafana-token | devops | glsa
@c bash
curl -H "Authorization: Bearer «S»" https://grafana.nordwind.io/api/search?query=«svc»
@t [{"id":«dd»,"title":"«svc» overview"}]
====
groq-key | coding | gsk
@t Traceback (most recent call last):
  File "chat.py", line 9, in <module>
    raise AuthError(f"rejected key «S» (status 401)")
AuthError
====
generic-api-key | coding | hex40
@t config.json
{
  "endpoint": "https://api.shipfast.example/v2",
  "api_key": "«S»",
  "timeout": 30
}
====
generic-api-key-header | support | pa
@c http_request {"method": "GET", "url": "https://crm.nordwind.io/api/customers/«dddd»", "headers": {"X-Api-Key": "«S»", "Accept": "application/json"}}
@t {"tier": "gold"}
====
env-password | devops | pr
@c bash
cat /srv/app/.env
@t DB_HOST=db-replica-2.internal
DB_USER=app
DB_PASSWORD=«S»
DB_NAME=orders
====
env-password | coding | ph
@t .env.example copied to .env
MAIL_HOST=smtp.nordwind.io
MAIL_USERNAME=noreply
MAIL_PASSWORD="«S»"
MAIL_PORT=587
====
env-password | devops | pa
@c bash
docker inspect «svc» --format '{{json .Config.Env}}'
@t ["PATH=/usr/local/bin","REDIS_PASSWORD=«S»","TZ=UTC"]
====
compose-password | devops | ph
@t services:
  db:
    image: postgres:16
    environment:
      POSTGRES_USER: app
      POSTGRES_PASSWORD: «S»
    ports: ["5432:5432"]
====
yaml-password | devops | pr
@t all:
  vars:
    ansible_user: deploy
    ansible_become_password: "«S»"
  hosts:
    «ip»:
====
url-password | devops | pa
@c bash
psql postgresql://app:«S»@«ip»:5432/orders -c 'select count(*) from invoices'
@t  count
-------
 «dddd»
====
url-password | coding | pa
@t DATABASE_URL=postgres://svc:«S»@db.nordwind.io/main?sslmode=require
RAILS_ENV=production
====
url-password | coding | purl
@t settings.py
DATABASES = {"default": dj_database_url.parse("mysql://shop:«S»@10.0.3.4:3306/shop")}
====
url-password | devops | pa
@u migrate mongodb+srv://admin:«S»@cluster0.ab1cd.mongodb.net/crm to the new cluster please
@a I'll start with a dump.
====
url-password | devops | pa
@t worker | [INFO] connecting to redis://:«S»@cache-1.internal:6379/0
worker | [INFO] connected in 12ms
====
url-password | devops | pa
@t kombu.exceptions.OperationalError: cannot reach amqp://celery:«S»@rabbit:5672//
====
cli-password | devops | ph
@c bash
mysql -u root -p'«S»' -h «ip» -e 'show processlist'
@t Id	User	Host	db	Command	Time
====
cli-password | devops | pa
@c bash
PGPASSWORD=«S» pg_dump -h «host» -U app orders > /tmp/orders.sql
@t
====
cli-password | devops | ph
@c bash
sshpass -p '«S»' ssh root@«ip» 'systemctl restart nginx'
@t
====
cli-password | devops | pr
@c bash
curl -sS -u 'jenkins:«S»' https://nexus.nordwind.io/repository/maven-releases/ -I
@t HTTP/2 200
====
cli-password | devops | ph
@c bash
echo 'deploy:«S»' | sudo chpasswd
@t
====
sql-password | devops | pr
@c bash
psql -c "CREATE USER reporting WITH PASSWORD '«S»'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reporting;"
@t CREATE ROLE
GRANT
====
sql-password | devops | ph
@c run_sql {"query": "ALTER USER 'wp'@'localhost' IDENTIFIED BY '«S»';"}
@t Query OK, 0 rows affected (0.01 sec)
====
connection-string-password | coding | pr
@t appsettings.Production.json
"ConnectionStrings": {
  "Default": "Server=tcp:nw-sql.database.windows.net,1433;Initial Catalog=crm;User ID=crmadmin;Password=«S»;Encrypt=True;"
}
====
properties-password | coding | ph
@t spring.datasource.url=jdbc:postgresql://db:5432/ledger
spring.datasource.username=ledger
spring.datasource.password=«S»
spring.jpa.show-sql=false
====
php-config-password | devops | pr
@t define( 'DB_NAME', 'wp_shop' );
define( 'DB_USER', 'wp' );
define( 'DB_PASSWORD', '«S»' );
define( 'DB_HOST', 'localhost' );
====
netrc-password | coding | pa
@t machine artifactory.nordwind.io
login build
password «S»
====
k8s-secret-base64 | devops | b64pw
@c bash
kubectl get secret «svc»-db -o yaml
@t apiVersion: v1
kind: Secret
metadata:
  name: «svc»-db
data:
  username: YXBw
  password: «S»
type: Opaque
====
basic-auth-header | coding | basic
@t GET /artifactory/api/npm/npm-local HTTP/1.1
Host: artifactory.nordwind.io
Authorization: Basic «S»
User-Agent: npm/10.2.4
====
terraform-password | devops | pr
@t   # aws_db_instance.main will be updated in-place
  ~ resource "aws_db_instance" "main" {
        id       = "orders-prod"
      + password = "«S»"
        username = "app"
    }
====
code-password | coding | ph
@t tests/e2e/login.spec.ts
await page.goto('/login');
await page.fill('#email', 'qa-admin@nordwind.io');
await page.fill('#password', '«S»');
await page.click('button[type=submit]');
====
prose-password | support | ph
@u hi, i cant log in. my email is «email» and my password is «S», can you check whats wrong?
@a Thanks for reaching out! Please never share your password with us. I'll look at the account.
====
prose-password | devops | ph
@u box is at «ip», user admin, pw «S». check why the disk is full
@c bash
ssh admin@«ip» df -h
====
prose-password | devops | pp
@u the vpn passphrase changed to «S» yesterday, update the runbook agent config
@a Updated.
====
prose-password | support | ph
@a Hi «first», I've reset your account. Your temporary password is: «S»
Please change it after your first login.
@u thank you!!
====
prose-password-de | support | ph
@u Guten Tag, mein Passwort lautet «S» aber ich komme trotzdem nicht ins Kundenkonto. Kundennummer «dddd»
@a Guten Tag, ich prüfe das sofort.
====
prose-password-es | support | ph
@u Hola, mi contraseña es «S» y el correo «email», no me deja entrar desde ayer
@a Hola, lamento el inconveniente.
====
prose-password-fr | support | ph
@u Bonjour, identifiant «email», mot de passe : «S». Pouvez-vous annuler la commande «order» ?
@a Bonjour, je m'en occupe.
====
prose-password-pt | support | ph
@u oi, a minha senha é «S» e o app diz que está errada
@a Olá! Vou verificar.
====
prose-password-pl | support | ph
@u Dzień dobry, hasło do konta to «S», proszę sprawdzić dlaczego nie widzę faktur
@a Dzień dobry, już sprawdzam.
====
prose-password-ru | support | ph
@u Здравствуйте, логин «email», пароль «S», не могу войти в личный кабинет
@a Здравствуйте! Сейчас проверю.
====
prose-password-ja | support | ph
@u ログインできません。パスワードは「«S»」です。確認お願いします。
@a ご不便をおかけして申し訳ございません。
====
form-password | browser | ph
@u Log in to the supplier portal and download the June invoice
@c browser_type {"element": "Password textbox", "ref": "e«dd»", "text": "«S»", "submit": true}
@t Page title: Supplier portal – Dashboard
====
form-password | browser | pr
@c fill_form {"fields": [{"name": "username", "value": "«email»"}, {"name": "password", "value": "«S»"}, {"name": "remember", "value": "true"}]}
@t submitted
====
form-password | browser | ph
@u Site: https://travel.example.com
Login: «email»
Password: «S»
Book the 9:40 train to «city» for tomorrow.
@a I'll log in and look for the train.
====
wifi-password | support | pp
@t Ticket note: guest wifi at the «city» store — SSID NW-Guest, WPA2 key «S», router reset by technician on «date».
====
bearer-jwt | coding | jwt
@c bash
curl -H 'Authorization: Bearer «S»' http://localhost:8000/api/me
@t {"id":«dddd»,"role":"admin"}
====
bearer-jwt | coding | jwt
@t POST /auth/login 200
{"access_token":"«S»","token_type":"bearer","expires_in":3600}
====
supabase-service-role | coding | jwtsvc
@t NEXT_PUBLIC_SUPABASE_URL=https://abcdnw.supabase.co
SUPABASE_SERVICE_ROLE_KEY=«S»
====
session-cookie | browser | sess
@t Request headers
accept: text/html
cookie: _ga=GA1.1.«dddd»; connect.sid=«S»; theme=dark
referer: https://portal.nordwind.io/
====
reset-link-token | support | reset
@t Email to «email»: Reset your password within 30 minutes: https://shop.nordwind.io/reset-password?token=«S»
====
jwt-signing-secret | coding | b64_32
@t auth:
  jwt_secret: «S»
  access_ttl: 15m
  refresh_ttl: 30d
====
django-secret-key | coding | djkey
@t BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = '«S»'
DEBUG = True
====
private-key-rsa | devops | rsa
@c bash
cat /etc/nginx/ssl/shop.key
@t «S»
====
private-key-openssh | devops | ossh
@u add this deploy key to the runner
«S»
it's for the «svc» repo
@a Writing it to ~/.ssh/deploy with mode 600.
====
private-key-openssh | devops | ossh
@c write_file {"path": "/root/.ssh/id_ed25519", "content": "«S»\n", "mode": "0600"}
@t ok
====
card | support | visasp
@u Bitte erstatten Sie auf meine Karte «S», gültig bis 09/27
@a Ich habe die Erstattung von «amt» EUR veranlasst.
====
card | support | mcd
@u you charged me twice!! card «S», order «order»
@a I'm sorry about that, «first». Let me check both charges.
====
card | browser | visa
@c fill_form {"fields": [{"name": "cardholder", "value": "«name»"}, {"name": "cardnumber", "value": "«S»"}, {"name": "exp", "value": "11/28"}]}
@t submitted
====
password-bare-reply-hard | devops | ph
@a ssh asks for the root password of «ip». What should I enter?
@u «S»
@a Thanks, I'm in.
====
password-typed-in-focused-field-hard | browser | pa
@c browser_click {"element": "Password", "ref": "e«dd»"}
@t Focused textbox "Password"
@c browser_type_text {"text": "«S»"}
@t ok
====
'''
# extra blocks: rarer material that only appears once
S_TXT2 = r'''
private-key-pkcs8-service-account | devops | pkcs8
@t service-account.json
type: service_account
project: nordwind-prod
client_email: ci@nordwind-prod.iam.gserviceaccount.com
private_key: |
«S»
====
card-amex | support | amex
@u my amex «S» was declined for order «order», can you retry?
@a Let me look into the payment.
====
otp-pin-hard | support | pin
@a Zur Bestätigung: Wie lautet Ihre 6-stellige Telefon-PIN?
@u «S»
@a Danke, Sie sind verifiziert.
====
password-next-message-hard | devops | ph
@u old login for the nas doesn't work, ill send you the new password
@u «S»
@a Works, mounting the share now.
====
password-answer-short-es-hard | support | ph
@a ¿Qué contraseña desea para la cuenta nueva?
@u pues «S» porfa
@a Cuenta creada.
====
metadata-token | coding | glpat
@m ci_push_url=https://oauth2:«S»@gitlab.com/nw/web.git
@u fix the flaky date test on «branch»
@a Done, pushed as «short».
====
'''
DROP = {"groq-key", "digitalocean-token", "shopify-token", "wifi-password", "notion-token", "linear-key", "discord-bot-token", "sentry-token"}  # rarer ones beyond the 120


def blocks(t):
    return [b.strip("\n") for b in re.split(r"^====$", t, flags=re.M) if b.strip()]


def make_secrets():
    out = []
    for b in blocks(S_TXT) + blocks(S_TXT2):
        head, _, text = b.partition("\n")
        kind, team, g = [x.strip() for x in head.split("|")]
        if kind in DROP:
            continue
        s = G[g]()
        out.append((kind, build(team, text, {"S": s}), s))
    return out


# ---------------------------------------------------------------- ordinary traffic
PLAIN = r'''
devops
@u why is «svc» slow since «time»?
@c bash
kubectl top pods -n prod | grep «svc»
@t «pod1»   «ddd»m   «ddd1»Mi
«pod2»   «ddd2»m   «ddd3»Mi
@a Both pods are near their CPU limit. I suggest scaling to «d» replicas.
====
devops
@c bash
kubectl get pods -n prod
@t NAME                                READY   STATUS    RESTARTS   AGE
«pod1»   1/1     Running   0          «dd»h
«pod2»   0/1     CrashLoopBackOff   «dd1»   «d»h
====
devops
@c bash
df -h
@t Filesystem      Size  Used Avail Use% Mounted on
/dev/nvme0n1p1  «ddd»G  «dd»G   «dd1»G  «dd2»% /
tmpfs           7.8G     0  7.8G   0% /dev/shm
@a Disk is fine on «host».
====
devops
@c bash
docker pull ghcr.io/nordwind/«svc»:«ver»
@t «ver»: Pulling from nordwind/«svc»
Digest: sha256:«sha256»
Status: Downloaded newer image for ghcr.io/nordwind/«svc»:«ver»
====
devops
@c bash
aws ec2 describe-instances --filters Name=tag:Name,Values=«host»
@t {"Reservations":[{"Instances":[{"InstanceId":"«inst»","InstanceType":"m6i.large","PrivateIpAddress":"«ip»","State":{"Name":"running"}}],"OwnerId":"«acct»"}]}
====
devops
@c bash
terraform plan
@t Terraform will perform the following actions:
  # aws_security_group_rule.https will be created
  + from_port = 443
  + cidr_blocks = ["10.0.0.0/8"]
Plan: 1 to add, «d» to change, 0 to destroy.
@a Safe to apply.
====
devops
@t «date» «time» nginx: «ip1» - - "GET /api/v2/orders?page=«dd» HTTP/1.1" 200 «dddd» "-" "okhttp/4.9"
«date» «time» nginx: «ip2» - - "POST /api/v2/cart HTTP/1.1" 502 «ddd» "-" "Mozilla/5.0"
@a One 502; upstream restarted at that moment.
====
devops
@u roll back «svc» to «ver»
@c bash
helm rollback «svc» «dd» -n prod
@t Rollback was a success! Happy Helming!
====
devops
@c bash
journalctl -u «svc» --since '1 hour ago' | tail -3
@t «host» «svc»[«dddd»]: worker started
«host» «svc»[«dddd»]: processed batch «uuid» in «ddd»ms
«host» «svc»[«dddd»]: idle
====
devops
@c bash
free -m && uptime
@t Mem:          «dddd»        «ddd»        «ddd1»
 «time» up «dd» days, load average: 0.«dd», 0.«dd1», 0.«dd2»
====
devops
@u raise the alert threshold for p99 latency to «ddd» ms
@c edit_file {"path": "alerts/«svc».yml", "old": "expr: p99 > 300", "new": "expr: p99 > «ddd»"}
@t edited
====
devops
@c bash
dig +short «svc».nordwind.io
@t «ip1»
«ip2»
@a DNS already points to the new load balancer.
====
devops
@a Postmortem for «ticket»: at «time» the queue of «svc» grew to «dddd» messages because a consumer was stuck. We restarted it and added a lag alert. No data was lost.
@u good, post it to the channel
====
devops
@c bash
crontab -l
@t 0 3 * * * /opt/backup/run.sh >> /var/log/backup.log 2>&1
*/15 * * * * /opt/bin/sync-«svc».sh
====
devops
@c bash
psql -h localhost -d orders -c "select status, count(*) from jobs group by 1"
@t  status  | count
---------+-------
 done    |  «dddd»
 failed  |    «dd»
@a «dd» failed jobs, all from «date».
====
devops
@u welche Version läuft auf staging?
@c bash
curl -s https://staging.nordwind.io/version
@t {"version":"«ver»","commit":"«sha»","built":"«date»T«time»Z"}
@a Auf Staging läuft «ver».
====
devops
@c bash
openssl x509 -in /etc/ssl/shop.crt -noout -dates
@t notBefore=Mar  3 00:00:00 2025 GMT
notAfter=Jun  1 23:59:59 2026 GMT
@a Certificate is valid until June.
====
devops
@c bash
kubectl describe node «host» | tail -5
@t Allocated resources:
  cpu     «dddd»m (72%)
  memory  «dddd1»Mi (64%)
Events: <none>
====
devops
@c bash
redis-cli info memory | head -3
@t # Memory
used_memory:«dddd»«dddd1»
used_memory_human:«dd».2M
====
devops
@c cloud_console {"action": "resize", "instance": "«inst»", "type": "c6i.xlarge"}
@t operation «uuid» pending
@a The resize of «host» has started.
====
support
@u Where is my order «order»? It should have arrived on «date».
@c crm_lookup {"order": "«order»"}
@t {"order":"«order»","status":"shipped","carrier":"UPS","tracking":"«track»","city":"«city»"}
@a Your parcel is on its way to «city», tracking number «track».
====
support
@u Hallo, ich möchte den Artikel «prod» zurückgeben. Geht das noch?
@a Hallo «first», ja, Sie haben 30 Tage Zeit. Ich sende Ihnen das Etikett an «email».
====
support
@u Bonjour, la commande «order» est arrivée abîmée.
@a Bonjour, je suis désolé. Souhaitez-vous un remplacement ou un remboursement de «amt» € ?
@u un remplacement svp
====
support
@u ¿Cuánto tarda el envío a «city»?
@a Entre 2 y «d» días laborables.
====
support
@u 注文番号 «order» の配送状況を教えてください。
@a «date» に発送済みです。お届けまで2〜3日お待ちください。
====
support
@u Olá, recebi o produto errado: pedi «prod».
@a Lamento muito! Já abri o processo «ticket».
====
support
@u Dzień dobry, proszę o fakturę do zamówienia «order».
@a Dzień dobry, faktura została wysłana na adres «email».
====
support
@u Здравствуйте, когда вернут деньги за заказ «order»?
@a Возврат «amt» EUR поступит в течение «d» рабочих дней.
====
support
@c crm_update {"contact": "«email»", "fields": {"phone": "«phone»", "city": "«city»", "segment": "retail"}}
@t {"ok": true, "id": "«sf»"}
@a I updated the phone number.
====
support
@c crm_search {"query": "«name»"}
@t [{"id":"«sf»","name":"«name»","email":"«email»","orders":«dd»,"lifetime_value":«amt»}]
====
support
@u can i change the delivery address to Hauptstr. «dd», «city»?
@a Sure, it's changed. The new estimated date is «date».
====
support
@s You are a friendly support agent of Nordwind Retail. Be brief. Offer vouchers up to 10 EUR. Escalate legal matters.
@u the «prod» makes a weird noise
@a Sorry to hear that! Could you send a short video?
====
support
@t Ticket «ticket» | Customer: «name» | Priority: normal | Subject: invoice address wrong | SLA: «d»h left
@a I'll reply with the corrected invoice.
====
support
@u do you ship to Norway?
@a Yes, for «amt» EUR. Customs may apply.
====
support
@a Summary of chat: customer «name» asked about «prod», wants exchange to size L, agreed to «d» days wait. Follow-up on «date».
====
support
@u ciao, il codice sconto ESTATE«dd» non funziona
@a Ciao! Il codice vale solo per ordini sopra 50 €.
====
support
@u 你好，我的订单 «order» 什么时候发货？
@a 您好，预计 «date» 发货。
====
support
@u Merhaba, siparişim «order» hâlâ gelmedi.
@a Merhaba, kargo «city» şubesinde görünüyor.
====
support
@c send_email {"to": "«email»", "subject": "Your refund for «order»", "body": "Hi «first»,\n\nwe refunded «amt» EUR today.\n\nBest,\nNordwind"}
@t {"message_id": "<«uuid»@mail.nordwind.io>"}
====
support
@u I love the «prod»! just wanted to say thanks
@a That made our day, thank you «first»!
====
support
@t {"conversation_id":"«uuid»","csat":«d»,"agent":"bot","duration_s":«ddd»}
====
coding
@u fix the rounding in «file»
@c bash
sed -n 40,52p «file»
@t     total = sum(i.price * i.qty for i in items)
    return round(total, 1)
@a It rounds to one decimal; should be two.
====
coding
@c bash
pytest -q
@t ........................................................ [100%]
«ddd» passed, «d» skipped in «dd».4s
====
coding
@c bash
git log --oneline -4
@t «short1» fix: handle empty cart
«short2» test: cover leap years
«short3» chore: bump deps
«short4» feat: export csv
====
coding
@c bash
git show --stat HEAD
@t commit «sha»
Author: «name» <«email»>
    refactor queue retry
 «file» | «dd» +++++----
====
coding
@t FAILED tests/test_dates.py::test_dst - AssertionError: assert '«time1»' == '«time2»'
1 failed, «ddd» passed
@a The test depends on the local timezone. I'll freeze it to UTC.
====
coding
@c edit_file {"path": "«file»", "old": "for i in range(len(rows)):", "new": "for i, row in enumerate(rows):"}
@t ok
====
coding
@c bash
npm run build
@t vite v5.2.«d» building for production...
dist/assets/index-Bq«dd»kX.js   «ddd».20 kB │ gzip: «dd».31 kB
✓ built in «d».81s
====
coding
@t package-lock.json
"node_modules/lodash": {
  "version": "«ver»",
  "resolved": "https://registry.npmjs.org/lodash/-/lodash-«ver».tgz",
  "integrity": "«sri»"
}
====
coding
@t go.sum
golang.org/x/text v0.«dd».0 h1:Zk«short»Q8w+hG2yqX1mRtL0vSxP9dF3cJ6nB5aYeUoI=
====
coding
@u can you explain what this regex does: ^(\d{4})-(\d{2})-(\d{2})$
@a It matches an ISO date and captures year, month and day.
====
coding
@t error[E0502]: cannot borrow `self.items` as mutable because it is also borrowed as immutable
  --> src/store.rs:«ddd»:«dd»
@a I'll clone the index before the loop.
====
coding
@c bash
ruff check . && mypy src
@t All checks passed!
Success: no issues found in «ddd» source files
====
coding
@t export function groupBy<T, K extends string>(xs: T[], f: (x: T) => K): Record<K, T[]> {
  return xs.reduce((acc, x) => { (acc[f(x)] ||= []).push(x); return acc; }, {} as Record<K, T[]>);
}
@a Looks good; I'd add a test for the empty list.
====
coding
@t CREATE TABLE invoices (
  id bigserial PRIMARY KEY,
  customer_id bigint NOT NULL REFERENCES customers(id),
  total numeric(10,2) NOT NULL,
  created_at timestamptz DEFAULT now()
);
====
coding
@u open a PR from «branch»
@c create_pr {"head": "«branch»", "base": "main", "title": "Handle empty export", "body": "Closes «ticket»."}
@t https://github.com/nordwind/web/pull/«ddd»
====
coding
@t Traceback (most recent call last):
  File "«file»", line «ddd», in run
    rows = load(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/«date».parquet'
@a The nightly export is missing.
====
coding
@t FROM python:3.12-slim
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
CMD ["gunicorn", "app:app", "-b", "0.0.0.0:8000"]
====
coding
@t requirements.txt
fastapi==0.«ddd».0
pydantic==2.«d».1 --hash=sha256:«sha256»
====
coding
@u warum ist der Test so langsam?
@a Er legt «dddd» Zeilen einzeln an. Mit bulk_create dauert er 0.«dd» s.
====
coding
@c bash
cargo test 2>&1 | tail -2
@t test result: ok. «dd» passed; 0 failed; «d» ignored
====
coding
@c bash
wc -l $(git ls-files '*.py') | tail -1
@t  «dd»«ddd» total
====
coding
@t .gitlab-ci.yml
test:
  image: node:20
  script:
    - npm ci
    - npm test -- --coverage
====
coding
@c write_file {"path": "tests/test_slug.py", "content": "from app.text import slug\n\ndef test_slug():\n    assert slug('Héllo Wörld') == 'hello-world'\n"}
@t written
====
coding
@t <button className="btn btn-primary" onClick={() => setOpen(!open)}>{t('export')}</button>
@u make it disabled while loading
@a Done.
====
browser
@u find the cheapest train from «city» to Berlin on «date»
@c browser_navigate {"url": "https://www.bahn.de/buchung?von=«city»&datum=«date»"}
@t Page title: Fahrplanauskunft
@a Cheapest is «amt» EUR at «time».
====
browser
@c fill_form {"fields": [{"name": "first_name", "value": "«first»"}, {"name": "city", "value": "«city»"}, {"name": "newsletter", "value": "false"}]}
@t submitted
====
browser
@c browser_click {"element": "Accept cookies", "ref": "e«dd»"}
@t - heading "Welcome" [level=1]
- link "Products" [ref=e«dd1»]
- textbox "Search" [ref=e«dd2»]
====
browser
@c browser_type {"element": "Search box", "ref": "e«dd»", "text": "«prod»"}
@t «dd1» results
@a The first result costs «amt» EUR.
====
browser
@c browser_select {"element": "Country", "value": "DE"}
@t ok
@c browser_type {"element": "Postal code", "text": "10«ddd»"}
@t ok
====
browser
@t Your reservation for «d» people on «date» at 19:30 is confirmed. Reference «short».
@a The table is booked.
====
browser
@u download the June report from the portal
@c browser_click {"element": "Download PDF", "ref": "e«dd»"}
@t Downloaded report-june.pdf («ddd» KB)
====
devops
@c bash
ping -c 2 «ip»
@t 64 bytes from «ip»: icmp_seq=1 ttl=63 time=0.«ddd» ms
2 packets transmitted, 2 received, 0% packet loss
====
devops
@c bash
systemctl status «svc»
@t ● «svc».service - Nordwind «svc»
     Active: active (running) since «date» «time» UTC
   Main PID: «dddd» (python3)
====
devops
@t {"level":"info","ts":"«date»T«time»Z","trace_id":"«md5»","span":"«short»","msg":"request done","ms":«ddd»}
{"level":"warn","ts":"«date»T«time»Z","trace_id":"«md51»","msg":"slow query","ms":«dddd»}
====
devops
@u how many nodes does the eu cluster have?
@c bash
kubectl get nodes --no-headers | wc -l
@t «dd»
@a «dd» nodes.
====
support
@u I was charged «amt» EUR but the price on the site was lower
@c billing_lookup {"email": "«email»"}
@t {"invoice":"INV-«dddd»","total":«amt»,"currency":"EUR","method":"visa •••• «dddd1»"}
@a The difference is the express shipping you chose.
====
support
@u my phone number changed, it's now «phone»
@a Updated, «first»!
====
'''

MENTION = r'''
support
@u I forgot my password, how can I reset it?
@a Click "Forgot password" on the login page and we'll send a link to «email». It is valid for 30 minutes.
====
support
@u Ich habe mein Passwort vergessen und die E-Mail kommt nicht an
@a Bitte prüfen Sie den Spam-Ordner. Ich habe die Mail um «time» erneut gesendet.
====
support
@u no recuerdo mi contraseña
@a Puede restablecer la contraseña en la página de acceso. Nunca nos la envíe por chat.
====
support
@u mot de passe oublié, que faire ?
@a Cliquez sur “Mot de passe oublié” ; le lien est valable «dd» minutes.
====
support
@u パスワードを忘れました
@a ログイン画面の「パスワードをお忘れの方」から再設定できます。
====
support
@u which card did you refund?
@a The Visa ending in «dddd». It takes «d» days.
====
support
@a For your safety: we never ask for your password, PIN or card number. Your ticket is «ticket».
@u ok good to know
====
support
@c crm_update {"contact": "«email»", "fields": {"password_reset_required": "true", "locked": "false"}}
@t {"ok": true}
@a I unlocked the account; you'll be asked for a new password.
====
support
@u the password must be how long?
@a At least 12 characters, with a digit and a symbol.
====
support
@u hasło nie działa
@a Proszę użyć opcji „Nie pamiętam hasła”. Link wysłaliśmy na «email».
====
support
@u I didn't get the 2FA code by SMS
@a I resent it to the number ending in «dd». The code expires after 5 minutes.
====
devops
@t DB_HOST=«host»
DB_USER=app
DB_PASSWORD=${DB_PASSWORD}
API_KEY=<your-api-key>
@a This is only the template; real values come from Vault.
====
devops
@c bash
kubectl get secrets -n prod
@t NAME                TYPE                DATA   AGE
«svc»-db            Opaque              2      «dd»d
regcred             kubernetes.io/dockerconfigjson   1      «ddd»d
====
devops
@t env:
  - name: DB_PASSWORD
    valueFrom:
      secretKeyRef:
        name: «svc»-db
        key: password
====
devops
@c bash
ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub
@t 256 «fp» root@«host» (ED25519)
====
devops
@c bash
cat ~/.ssh/authorized_keys
@t ssh-ed25519 «pub» «email»
====
devops
@t The authenticity of host '«ip»' can't be established.
ED25519 key fingerprint is «fp».
Are you sure you want to continue connecting (yes/no/[fingerprint])?
====
devops
@c bash
vault kv list kv/prod
@t Keys
----
«svc»
smtp
stripe
====
devops
@c bash
export PGPASSWORD=$(vault kv get -field=password kv/prod/«svc») && psql -h «host» -U app -c 'select 1'
@t  ?column?
----------
        1
====
devops
@c bash
aws secretsmanager describe-secret --secret-id prod/«svc»
@t {"ARN":"arn:aws:secretsmanager:eu-central-1:«acct»:secret:prod/«svc»-Xk«d»pQz","Name":"prod/«svc»","LastRotatedDate":"«date»T«time»Z","RotationEnabled":true}
====
devops
@u rotate the api token of «svc» and tell me when done
@a Done: new token stored in Vault at «time», the old one is revoked.
====
devops
@t sshd[«dddd»]: Failed password for invalid user admin from «ip» port 5«dddd» ssh2
sshd[«dddd»]: Connection closed by invalid user admin «ip» [preauth]
====
devops
@t resource "random_password" "db" {
  length  = 24
  special = false
}
resource "aws_db_instance" "main" {
  password = random_password.db.result
}
====
devops
@t   ~ password = (sensitive value)
  ~ instance_class = "db.t4g.medium" -> "db.m6g.large"
Plan: 0 to add, 1 to change, 0 to destroy.
====
devops
@c bash
sha256sum «svc»-«ver».tar.gz
@t «sha256»  «svc»-«ver».tar.gz
@a The checksum matches the release page.
====
devops
@t fatal: Authentication failed for 'https://github.com/nordwind/«svc».git/'
remote: Support for password authentication was removed on August 13, 2021.
@a You need a personal access token; please set GH_TOKEN in the runner.
====
devops
@c bash
aws sts get-caller-identity
@t {"UserId":"AROA«short»:agent","Account":"«acct»","Arn":"arn:aws:sts::«acct»:assumed-role/readonly/agent"}
====
devops
@t users:
  - name: deploy
    password: "********"
    ssh_import_id: gh:nordwind
====
devops
@c bash
curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $TOKEN" https://api.nordwind.io/health
@t 200
====
devops
@c bash
docker login -u ci --password-stdin registry.nordwind.io < /run/secrets/registry
@t Login Succeeded
====
coding
@t const token = req.headers.authorization?.split(' ')[1];
if (!token) return res.status(401).json({ error: 'missing token' });
const user = jwt.verify(token, process.env.JWT_SECRET);
@a It misses a try/catch for expired tokens.
====
coding
@t def check_password(self, raw_password: str) -> bool:
    return bcrypt.checkpw(raw_password.encode(), self.password_hash)
====
coding
@t class Settings(BaseSettings):
    openai_api_key: SecretStr
    database_url: str
    secret_key: str = Field(min_length=32)
@u make the key optional
@a Changed to `openai_api_key: SecretStr | None = None`.
====
coding
@t import os
API_KEY = os.environ["API_KEY"]
password = getpass.getpass("Password: ")
client = Client(api_key=API_KEY)
====
coding
@t <label htmlFor="password">{t('login.password')}</label>
<input id="password" type="password" autoComplete="current-password" required minLength={12} />
====
coding
@t ## Setup
1. Copy `.env.example` to `.env`
2. Set `OPENAI_API_KEY=sk-...` and `DATABASE_URL=postgres://USER:PASSWORD@HOST:5432/DB`
3. `make dev`
====
coding
@t       - name: Deploy
        env:
          NPM_TOKEN: ${{ secrets.NPM_TOKEN }}
          AWS_ACCESS_KEY_ID: ${{ secrets.AWS_ACCESS_KEY_ID }}
        run: npm publish
====
coding
@c bash
grep -rn "password" src | head -4
@t src/auth/forms.py:12:    password = PasswordField(_("Password"))
src/auth/forms.py:13:    password2 = PasswordField(_("Repeat password"))
src/auth/views.py:«dd»:    if not user.check_password(form.password.data):
src/i18n/de.json:«ddd»:  "password": "Passwort",
====
coding
@t max_tokens=«dddd»
prompt_tokens: «ddd», completion_tokens: «dd», total_tokens: «dddd1»
@a We are below the token limit.
====
coding
@t it('rejects a wrong password', async () => {
  const res = await login({ email: user.email, password: faker.internet.password() });
  expect(res.status).toBe(401);
});
====
coding
@t {"error":{"type":"authentication_error","message":"invalid x-api-key"},"request_id":"«req»"}
@a The key in the environment is empty.
====
coding
@u where do we store the refresh token?
@a In an HttpOnly cookie named `refresh_token`, set in «file» line «dd». Only its SHA-256 is kept in the database.
====
coding
@t tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
tokens = tokenizer(text)["input_ids"]
pad_token_id = tokenizer.pad_token_id
====
coding
@t cache_key = f"user:{user_id}:orders:{page}"
primary_key = ("tenant_id", "order_id")
sort_key = lambda o: o["created_at"]
====
coding
@t -    secret_key: changeme
+    secret_key: ${APP_SECRET_KEY:?not set}
@a Placeholder removed, the app now refuses to start without the variable.
====
coding
@t CREATE TABLE users (
  id uuid PRIMARY KEY,
  email citext UNIQUE,
  password_hash text NOT NULL,
  api_token_digest bytea
);
====
coding
@c bash
git rev-parse HEAD && git ls-remote origin main
@t «sha1»
«sha2»	refs/heads/main
====
coding
@t ETag: "«md5»"
X-Request-Id: «uuid»
Cache-Control: max-age=«ddd»
====
coding
@t SyntaxError: Unexpected token '<', "<!DOCTYPE "... is not valid JSON
    at JSON.parse (<anonymous>)
@a The API returned an HTML error page.
====
coding
@t conftest.py
def auth_headers(user):
    return {"Authorization": f"Bearer {create_access_token(user.id)}"}
====
coding
@u does the log filter mask passwords?
@a Yes: values of password, token and secret become [REDACTED], see «file».
====
coding
@t logger.info("login ok user=%s session=%s", user.id, "[REDACTED]")
password=[REDACTED] token=***
====
coding
@t const form = await page.locator('input[name="csrf_token"]');
await page.fill('#password', process.env.E2E_PASSWORD!);
====
browser
@t - textbox "Email" [ref=e«dd»]
- textbox "Password" [ref=e«dd1»]
- checkbox "Remember me" [ref=e«dd2»]
- button "Sign in" [ref=e«d»]
@a I need your login to continue. Please sign in yourself in the window.
====
browser
@c fill_form {"fields": [{"name": "email", "value": "«email»"}, {"name": "password", "value": "{{vault:supplier_portal}}"}]}
@t submitted
====
browser
@c browser_click {"element": "Show password", "ref": "e«dd»"}
@t - textbox "Password": ••••••••••
====
browser
@t Wrong username or password. You have «d» attempts left.
@u ok stop, I'll do it by hand
====
browser
@c browser_click {"element": "Create API key", "ref": "e«dd»"}
@t Dialog "New API key": name [textbox], scopes: read, write. You will see the key only once.
@a Which scopes should it have?
====
support
@c gift_lookup {"order": "«order»"}
@t {"order":"«order»","customer":"«uuid»","auth":"3ds passed","card_last4":"«dddd»","network":"mastercard"}
====
devops
@c bash
openssl req -new -newkey rsa:2048 -nodes -keyout shop.key -out shop.csr -subj /CN=shop.nordwind.io
@t Generating a RSA private key
writing new private key to 'shop.key'
====
'''


def make_ordinary():
    out, seen = [], set()
    for txt, n in ((PLAIN, 266), (MENTION, 134)):
        bs, i = blocks(txt), 0
        while n:
            order = R.sample(bs, len(bs))
            for b in order:
                if not n:
                    break
                team, _, text = b.partition("\n")
                row = build(team.strip(), text, {})
                k = json.dumps([(m["content"], [c["function"]["arguments"] for c in m.get("tool_calls", [])]) for m in row["messages"]], ensure_ascii=True)
                k = re.sub(r"call_\w+", "", k)
                if k in seen and i < 1:
                    continue
                seen.add(k)
                out.append(row)
                n -= 1
    R.shuffle(out)
    return out


SECRETS: list[tuple[str, dict, str]] = make_secrets()
ORDINARY: list[dict] = make_ordinary()
