"""Model files on the Hugging Face hub: download and upload.

A token is handed to ``huggingface_hub`` for the one call and is written nowhere; without one, what ``hf auth login``
stored is used.
"""

from pathlib import Path
from typing import Any

from procon.errors import ModelFileError, OutputError

_SUFFIX = ".procon"


def download(repo: str, filename: str | None, revision: str | None, token: str | None) -> Path:
    """The model file of ``repo`` in the cache of the hub; ``filename`` is needed where it has several."""
    api = _api(token)
    try:
        if filename is None:
            names = [name for name in api.list_repo_files(repo, revision=revision) if name.endswith(_SUFFIX)]
            if len(names) != 1:
                listed = ", ".join(sorted(names)) or "none"
                raise ModelFileError(f"{repo}: expected one {_SUFFIX} file, got {listed}; name it with filename")
            filename = names[0]
        return Path(api.hf_hub_download(repo, filename, revision=revision))
    except ModelFileError:
        raise
    except Exception as error:  # of the hub, of its client and of the connection, which share no base class
        raise ModelFileError(f"{repo}: cannot be read from the hub; {_explain(error)}") from None


def upload(path: Path, repo: str, filename: str, private: bool, token: str | None) -> str:
    """Write a model file to ``repo``, which is made if it is not there; returns the address of the repository."""
    if not filename.endswith(_SUFFIX):
        raise ModelFileError(f"filename must end in {_SUFFIX}, got {filename}")
    api = _api(token)
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        message = f"Upload {filename}"
        api.upload_file(path_or_fileobj=path, path_in_repo=filename, repo_id=repo, commit_message=message)
    except Exception as error:
        raise OutputError(f"{repo}: cannot be written to the hub; {_explain(error)}") from None
    return str(address)


def _api(token: str | None) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=token, library_name="procon")


def _explain(error: Exception) -> str:
    """The cause in one line, and what to do; requests and headers, which may hold a token, are left out."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or the token has no access to it; check the name, or pass token"
    if isinstance(error, HFValidationError):
        return "the name must be USER/NAME, of letters, digits, - and _"
    if isinstance(error, EntryNotFoundError) and not isinstance(error, FileNotFoundError):  # that is the connection
        return "there is no such file in it; check filename"
    if isinstance(error, HfHubHTTPError):
        return f"the hub answered {error.response.status_code}; check the name, and that the token may do this"
    return f"{type(error).__name__}; check the connection and the name of the repository"
