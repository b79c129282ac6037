"""Refuses names of the published ``wids`` that have no equivalent here, and says what to write instead.

Every such name raises an error with a replacement; none is merely missing.
"""

from typing import NoReturn

_TAR = "read members with wids.wids_mmtar.MMIndexedTar, or samples with webdataset.index"
_CLEAN = "pass cache_size= (bytes) to ShardListDataset, or use webdataset.cache.LRUCleanup"
_COPY = "pass localname= or cache_dir= to ShardListDataset, or call wids.wids_dl.download_file"
_CLI = "run wids-index, or call wids.wids_index.main([...])"

INSTEAD = {
    "TarHeader": _TAR,
    "parse_tar_header": _TAR,
    "next_header": _TAR,
    "keep_while_reading": "copies in cache_dir are not deleted while this process reads them; nothing is to be done",
    "ULockFile": "copies appear under their names when they are whole, so no lock is needed",
    "ConcurrentDownloader": _COPY,
    "cleanup_downloads": _CLEAN,
    "default_cmds": "pass handlers={scheme: function(remote, local)} to wids.wids_dl.download_file",
    "max_open_objects": _COPY,
    "open_objects": _COPY,
    "recent_downloads": "set WIDS_VERBOSE=1 to log downloads",
    "verbose_cmd": "set WIDS_VERBOSE=1 to log downloads",
    "vcmd": "set WIDS_VERBOSE=1 to log downloads",
    "mkresult": _COPY,
    "splitresult": _COPY,
    "ExclusiveLock": _CLEAN,
    "create_cleanup_background_process": _CLEAN,
    "keep_most_recent_files": _CLEAN,
    "main_wds": "run the project's bench/",
    "main_wids": "run the project's bench/",
    "AtomicJsonUpdate": _CLI,
    "format_with_suffix": _CLI,
    "main_create": _CLI,
    "main_info": _CLI,
    "main_sample": _CLI,
    "main_update": _CLI,
    "maybe_decode": _CLI,
    "maybe_read": _CLI,
    "print_long_info": _CLI,
    "shorten_name": _CLI,
    "urldirbase": _CLI,
    "urlfile": _CLI,
}


def removed_name(module: str, name: str) -> NoReturn:
    """Refuse a name of a module.

    Args:
        module: the module that was asked.
        name: the name.

    Raises:
        AttributeError: always; it says what to write instead, where the name was published once.
    """
    hint = INSTEAD.get(name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}" + (f": {hint}" if hint else ""))
