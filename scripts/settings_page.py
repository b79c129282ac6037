"""Write ``docs/settings.md`` from the variables declared in ``core/settings.py``; with ``--check``, only compare.

Name, default and meaning come from the declarations. The subject of each variable, what its value is, and when one
changes it are said here: a variable without them is an error, and so is one that is not declared.
"""

import sys
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every environment variable that the library reads, by subject: the unit or kind of its value, its default, its meaning,
and when one changes it. An argument of the same meaning (`cache_dir=` for `WDS_CACHE`) comes first.

```python
import os

import webdataset as wds

os.environ["WDS_SEED"] = "7"  # or `export WDS_SEED=7` before the program starts
with wds.ShardWriter("train-%d.tar", maxcount=10, verbose=0) as sink:
    for number in range(30):
        sink.write({"__key__": f"{number:02d}", "cls": number})
dataset = wds.WebDataset("train-{0..2}.tar", shardshuffle=10).shuffle(30)
dataset.set_epoch(0)
order = [sample["__key__"] for sample in dataset]
dataset.set_epoch(0)
assert order == [sample["__key__"] for sample in dataset]
del os.environ["WDS_SEED"]
```

A variable is read when it is needed, not at import. An empty one counts as not set. Sizes in bytes may be written
`1e12`. What cannot be read is a `UsageError`. `wds doctor` prints those that are set, with `***` for secrets.

**To begin with:** `WDS_CACHE` and `WDS_CACHE_SIZE` (local copies of shards), `WDS_RETRY_SECONDS` (how long a store may
be away), `WDS_REQUESTS_PER_SECOND` (a store that refuses), `WDS_SEED` (the same order in every run), `WDS_TRUST`
(pickles).
"""
TAIL = """
## Variables whose names you choose

| variable | stands for |
|---|---|
| `WDS_NAME` | what `${NAME}` in a shard expression becomes: `"${DATA}/train-{000..099}.tar"` reads `WDS_DATA` |
| `WDS_S3_NAME_FIELD` | a field of the S3 profile `NAME`, such as `WDS_S3_TEAM_REGION`; see [S3 profiles](config.md) |

Credentials and regions of AWS (`AWS_ACCESS_KEY_ID` …) and of Google are read by the packages of these services.
"""


class Use(NamedTuple):
    """What the declaration of a variable does not say."""

    value: str
    when: str = ""


class Subject(NamedTuple):
    """One section of the page."""

    title: str
    opening: str
    uses: dict[str, Use]


PATH, TEXT, SWITCH, BYTES, COUNT = "path", "text", "0 or 1", "bytes", "number"
LAUNCHER = "the launcher sets it"
SUBJECTS = (
    Subject(
        "Reading",
        "Shards, their order, and what counts as damage.",
        {
            "WDS_SEED": Use(COUNT, "runs have to repeat and the program gives no `seed=`"),
            "WDS_MISSING_END": Use("word", "a program that wrote your shards leaves out the end mark"),
            "WDS_CHANGED_SHARDS": Use("word", "shards were replaced on purpose since the state was saved"),
            "WDS_MAX_MEMBER_BYTES": Use(BYTES, "one member is larger than the memory bound allows"),
            "WDS_SHARED_BYTES": Use(BYTES, "memory of workers is short: less"),
            "WDS_NATIVE": Use(SWITCH, "you suspect the core in C, or want to measure without it"),
            "WDS_REWRITE": Use(TEXT, "the shards have moved and the urls in the program have not"),
            "GOPEN_REWRITE": Use(TEXT, "as `WDS_REWRITE`; the name in webdataset 0.2"),
            "GOPEN_BUFFER": Use(BYTES),
            "ALLOW_OBSOLETE": Use(SWITCH),
        },
    ),
    Subject(
        "Storage and retries",
        "How stores are asked, and for how long. [Storage and retries](storage-retries.md) explains the first five.",
        {
            "WDS_RETRY_SECONDS": Use("seconds", "a run should survive a store that is restarted: `600`"),
            "WDS_REQUESTS_PER_SECOND": Use(
                "requests/s", "the store allows a known rate: divide it by the number of hosts"
            ),
            "WDS_SHARED_LISTING": Use(SWITCH, "each process should see the newest list"),
            "WDS_JOB_ID": Use(TEXT, "the launcher has no name for the job, or two jobs have one name"),
            "WDS_CONNECTIONS": Use(COUNT, "a line of high latency is not used up; `1` to spare a weak server"),
            "WDS_PREFETCH_BYTES": Use(BYTES, "memory is short; see [Reading ahead](reading-ahead.md)"),
            "WDS_GOPEN_BACKEND": Use("word", "an old job relies on the options of `gsutil` or `curl`"),
            "REQUESTS_CA_BUNDLE": Use(PATH, "a server's certificate is signed by your own authority"),
            "SSL_CERT_FILE": Use(PATH, "the same, for every program that uses OpenSSL"),
        },
    ),
    Subject(
        "Caching",
        "See [The shard cache](cache.md).",
        {
            "WDS_CACHE": Use(PATH, "shards of a store are read more than once: a folder on a local disk"),
            "WDS_CACHE_SIZE": Use(BYTES, "always beside `WDS_CACHE`, unless the disk holds all shards"),
            "WDS_CACHE_REVALIDATE": Use("word", "shards are never replaced (`never`), or all the time (`always`)"),
            "WDS_CACHE_VERIFY": Use(SWITCH, "`0`: reading the cached files once more costs too much"),
            "WIDS_CACHE": Use(PATH, "the program uses [`wids`](wids.md)"),
        },
    ),
    Subject(
        "Decoding and trust",
        "What data may do, and how large it may become. See [Formats of fields](formats.md) and [Images](images.md).",
        {
            "WDS_TRUST": Use("word", "pickles of your own hold classes that are refused (`full`)"),
            "WDS_SECURE": Use(SWITCH, "the data, or the list of urls, comes from strangers"),
            "WDS_PYTORCH_WEIGHTS_ONLY": Use(SWITCH, "`.pth` fields of your own hold more than tensors"),
            "WDS_KEEP_BYTES": Use("extensions", "the program parses some fields itself"),
            "WDS_MAX_FIELD_BYTES": Use(BYTES, "`FieldTooLarge` names it, and the size is right"),
            "WDS_MAX_IMAGE_PIXELS": Use("pixels", "`FieldTooLarge` names it, and the size is right"),
            "WDS_MAX_MEDIA_BYTES": Use(BYTES, "`FieldTooLarge` names it, and the size is right"),
        },
    ),
    Subject(
        "Loaders, ranks and jobs",
        "Launchers set most of them. [Distributed training](multinode.md) says which one counts.",
        {
            "WDS_RANK": Use(COUNT, "no launcher says the rank, or a wrong one"),
            "WDS_WORLD_SIZE": Use(COUNT, "together with `WDS_RANK`"),
            "RANK": Use(COUNT, LAUNCHER),
            "WORLD_SIZE": Use(COUNT, LAUNCHER),
            "WORKER": Use(COUNT, "worker processes of your own that are not torch's"),
            "NUM_WORKERS": Use(COUNT, "together with `WORKER`"),
            "MASTER_ADDR": Use(TEXT, LAUNCHER),
            "MASTER_PORT": Use(COUNT, LAUNCHER),
            "TORCHELASTIC_RUN_ID": Use(TEXT, LAUNCHER),
            "OMPI_COMM_WORLD_RANK": Use(COUNT, LAUNCHER),
            "OMPI_COMM_WORLD_SIZE": Use(COUNT, LAUNCHER),
            "MV2_COMM_WORLD_RANK": Use(COUNT, LAUNCHER),
            "MV2_COMM_WORLD_SIZE": Use(COUNT, LAUNCHER),
            "PMI_RANK": Use(COUNT, LAUNCHER),
            "PMI_SIZE": Use(COUNT, LAUNCHER),
            "PMIX_NAMESPACE": Use(TEXT, LAUNCHER),
            "SLURM_JOB_ID": Use(TEXT, LAUNCHER),
            "SLURM_PROCID": Use(COUNT, LAUNCHER),
            "SLURM_NTASKS": Use(COUNT, LAUNCHER),
            "SLURM_STEP_ID": Use(COUNT, LAUNCHER),
            "SLURM_STEP_NUM_TASKS": Use(COUNT, LAUNCHER),
            "SLURM_ARRAY_TASK_ID": Use(COUNT, LAUNCHER),
            "SLURM_ARRAY_TASK_MIN": Use(COUNT, LAUNCHER),
            "SLURM_ARRAY_TASK_STEP": Use(COUNT, LAUNCHER),
            "SLURM_ARRAY_TASK_COUNT": Use(COUNT, LAUNCHER),
            "JOB_COMPLETION_INDEX": Use(COUNT, LAUNCHER),
        },
    ),
    Subject(
        "S3",
        "See [S3 profiles](config.md).",
        {
            "WDS_S3_PROFILE": Use(TEXT, "all `s3://` urls of a job go to one service or account"),
            "WDS_CONFIG": Use(PATH, "a job brings a configuration of its own"),
            "WDS_PETREL_CONF": Use(PATH, "petrel's file is elsewhere"),
            "AWS_CONFIG_FILE": Use(PATH, "as for other programs of AWS"),
            "AWS_SHARED_CREDENTIALS_FILE": Use(PATH, "as for other programs of AWS"),
        },
    ),
    Subject(
        "Google Cloud and Azure",
        "See [Storage](storage.md).",
        {
            "STORAGE_EMULATOR_HOST": Use("url", "tests run against an emulator"),
            "AZURE_STORAGE_ACCOUNT": Use(TEXT, "`az://` urls name no account"),
            "AZURE_STORAGE_ACCOUNT_NAME": Use(TEXT),
            "AZURE_STORAGE_KEY": Use("secret", "access is by key"),
            "AZURE_STORAGE_ACCOUNT_KEY": Use("secret"),
            "AZURE_STORAGE_SAS_TOKEN": Use("secret", "access is by signature"),
            "AZURE_STORAGE_CONNECTION_STRING": Use("secret", "the portal gave you one"),
        },
    ),
    Subject(
        "Hugging Face hub",
        "See [Hugging Face hub](hf.md).",
        {
            "HF_TOKEN": Use("secret", "the repository is private or gated"),
            "HUGGING_FACE_HUB_TOKEN": Use("secret"),
            "HF_TOKEN_PATH": Use(PATH, "the token is in a file of its own"),
            "HF_ENDPOINT": Use("url", "you use a mirror of the hub"),
            "HF_HOME": Use(PATH, "as for other programs of the hub"),
        },
    ),
    Subject(
        "AIStore",
        "See [AIStore](aistore.md).",
        {
            "AIS_ENDPOINT": Use("url", "there are `ais:` urls; without it the program `ais` reads them"),
            "USE_AIS_FOR": Use("schemes", "urls of other stores go through AIStore"),
            "AIS_AUTHN_TOKEN": Use("secret", "the cluster asks who you are"),
            "AIS_AUTHN_TOKEN_FILE": Use(PATH, "the same, by a file"),
            "AIS_CLIENT_CA": Use(PATH, "the cluster's certificate is signed by your own authority"),
            "AIS_CRT": Use(PATH, "the cluster asks for a certificate"),
            "AIS_CRT_KEY": Use(PATH, "together with `AIS_CRT`"),
            "AIS_SKIP_VERIFY_CRT": Use(SWITCH, "tests only"),
        },
    ),
    Subject(
        "Writing",
        "No variable changes what is written: writers take arguments (`maxcount=`, `maxsize=`, `compress=` …). Uploads "
        "use the settings of their store, above.",
        {},
    ),
    Subject(
        "The command `wds` and the viewer",
        "Terminals set all but the first.",
        {
            "NO_COLOR": Use(TEXT, "the output goes where colours are not shown"),
            "TERM": Use(TEXT),
            "TERM_PROGRAM": Use(TEXT),
            "KITTY_WINDOW_ID": Use(COUNT),
            "LD_LIBRARY_PATH": Use("paths", "the system needs it"),
            "SYSTEMROOT": Use("path", "no program starts without it"),
        },
    ),
    Subject(
        "Debugging",
        "What is logged (logger `webdataset`), and how errors are shown.",
        {
            "WDS_FULL_TRACEBACKS": Use(SWITCH, "you look for a bug in this library"),
            "GOPEN_VERBOSE": Use(SWITCH, "you want to know which urls are opened, and when"),
            "WDS_VERBOSE_CACHE": Use(SWITCH, "you want to know what is downloaded, read locally and deleted"),
            "WIDS_VERBOSE": Use(SWITCH, "the same, for `wids`"),
            "WDS_SHOW_SEED": Use(SWITCH, "two runs should be alike and are not"),
        },
    ),
    Subject(
        "Folders",
        "Where this library looks for files of the user, as other programs do.",
        {
            "XDG_CONFIG_HOME": Use(PATH),
            "XDG_CONFIG_DIRS": Use("paths"),
            "XDG_CACHE_HOME": Use(PATH),
            "XDG_RUNTIME_DIR": Use(PATH, "processes of a job have to share a [budget of requests](storage-retries.md)"),
        },
    ),
)


def page() -> str:
    """Return the page's text.

    Raises:
        SystemExit: a variable has no subject, or more than one, or is not declared.
    """
    from webdataset.core import settings

    declared = {
        variable.name: variable
        for variable in vars(settings).values()
        if isinstance(variable, settings.EnvironmentVariable)
    }
    listed = [name for subject in SUBJECTS for name in subject.uses]
    wrong = sorted((declared.keys() ^ set(listed)) | {name for name in listed if listed.count(name) > 1})
    if wrong:
        sys.exit(f"each variable needs one subject in scripts/settings_page.py: {', '.join(wrong)}")
    text = HEAD
    for subject in SUBJECTS:
        text += f"\n## {subject.title}\n\n{subject.opening}\n"
        if subject.uses:
            text += "\n| variable | meaning | change it when |\n|---|---|---|\n"
        for name, use in subject.uses.items():
            default = format_default(declared[name].default, use.value)
            meaning = declared[name].meaning.replace("|", "\\|")
            text += f"| `{name}`<br>{use.value}; {default} | {meaning} | {use.when} |\n"
    return text + TAIL


def format_default(default: object, value: str) -> str:
    """Return a default as the page shows it.

    Args:
        default: of the variable.
        value: what its value is.
    """
    if default in (None, "", ()) or (value == TEXT and default is False):
        return "not set"
    if isinstance(default, bool):
        return f"default `{int(default)}`"
    if value == BYTES and isinstance(default, int) and default >= 1 << 20:
        return f"default `{default}` ({default >> 20} MiB)"
    return f"default `{default:g}`" if isinstance(default, float) else f"default `{default}`"


def main() -> None:
    """Write the page, or fail where it is not up to date."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/settings.md is not up to date: run scripts/settings_page.py")


if __name__ == "__main__":
    main()
