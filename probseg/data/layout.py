"""Folders of data sets, the files in them, and lists of their names."""

from __future__ import annotations

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from probseg.errors import DataError
from probseg.paths import FOLLOW, LEADS_OUT, data_dir, follows, leads_out
from probseg.picture_formats import (
    IMAGE_SUFFIXES,
    LOSSLESS_SUFFIXES,
    UNREAD_SUFFIXES,
    list_pictures,
    not_supported,
    of_one_stem,
    refuse_only_unread,
    second_of_a_stem,
)
from probseg.texts import read_lines


def chosen_root(root: Path | str | None, *names: str) -> Path:
    """Return the given folder, else the first of some folders that exists in `data_dir`."""
    if root is not None:
        return Path(root)
    choices = [data_dir() / name for name in names]
    return next((place for place in choices if place.is_dir()), choices[0])


def picture_files(
    place: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES, root: Path | None = None
) -> dict[str, Path]:
    """Map the stems of the picture files in a folder, which may be missing, to their paths.

    Two files of one stem are refused, and links out of `root` (by default the folder) unless the
    person `follows` them.
    """
    paths = list_pictures(place, suffixes)  # .jpg, .JPG and .bmp in GrabCut's archive
    outside = (path for path in paths if leads_out(path, root or place) and not follows(path))
    twins = {path: second_of_a_stem(first) for path, first in of_one_stem(paths).items()}
    for path, reason in {**dict.fromkeys(outside, FOLLOW), **twins}.items():
        raise DataError(f"{path}: {reason}")
    if not paths:
        refuse_only_unread(place)
    return {path.stem: path for path in paths}


def sort_pictures(
    place: Path,
    suffixes: Sequence[str] = IMAGE_SUFFIXES,
    root: Path | None = None,
    trusted: Callable[[Path], bool] = follows,
) -> tuple[dict[str, Path], dict[Path, str]]:
    """Return the pictures in a folder that are read, by their stems, and why others are not."""
    files, refused = [], {}
    for path in list_pictures(place, IMAGE_SUFFIXES + UNREAD_SUFFIXES):
        if leads_out(path, root or place) and not trusted(path):
            refused[path] = LEADS_OUT
        elif path.suffix.lower() in suffixes:
            files.append(path)
        else:
            expected = f"is not lossless; expected {', '.join(suffixes)}"
            refused[path] = (suffixes == IMAGE_SUFFIXES and not_supported(path)) or expected
    twins = of_one_stem(files)
    refused |= {path: second_of_a_stem(first) for path, first in twins.items()}
    return {path.stem: path for path in files if path not in twins}, refused


def unread_folders(*places: Path) -> dict[Path, str]:
    """Find folders with pictures inside of folders of photographs and masks, where none is read.

    Hidden folders do not count, nor do `masks/` and exports of the annotation page, which
    photographs may lie next to.
    """
    reasons = {}
    for folder in sorted(path for place in places for path in place.glob("[!.]*")):
        if not folder.is_dir() or leads_out(folder, folder.parent):
            continue
        inside = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        count = sum(len(list_pictures(path)) for path in inside)
        if count and folder.name != "masks" and not folder.name.startswith("annotations-"):
            pictures = "a picture" if count == 1 else f"{count} pictures"
            reasons[folder] = f"is a folder with {pictures}, not used; move them one folder up"
    return reasons


def mask_files(place: Path, root: Path | None = None) -> dict[str, Path]:
    """Map the stems of the masks in a folder to their paths."""
    files, refused = sort_pictures(place, LOSSLESS_SUFFIXES, root)
    for path, reason in refused.items():
        raise DataError(f"{path}: {reason}")
    return files


def refuse_missing(folder: Path, kind: str, missing: list[str], others: str) -> None:
    """Raise a `DataError` if files have no partner of the same name in another folder."""
    if missing:
        raise DataError(
            f"{folder}: no {kind} for {missing[:3]} ({len(missing)} in all); add files of the same "
            f"names or remove those in {others}/"
        )


def leads_outside(file: str) -> bool:
    """Whether a path names no file inside a folder that it starts from, on any system."""
    path = PureWindowsPath(file)  # which knows / as well as \\, and C:
    no_name = not path.parts or any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in file)
    return no_name or bool(path.anchor) or ".." in path.parts


def first_words(path: Path) -> list[str]:
    """Read the first word of each line of a list of a published data set, blank lines left out."""
    hint = "unpack the archive again"
    words = ((number, line.split()[0]) for number, line in read_lines(path, hint))
    return _all_different(path, words, hint)


def _all_different(path: Path, names: Iterable[tuple[int, str]], hint: str) -> list[str]:
    """Return the names of the lines of a list, of which no two may be equal."""
    lines: dict[str, int] = {}
    for line, name in names:
        if lines.setdefault(name, line) != line:
            raise DataError(f"{path}, line {line}: {name!r} is in line {lines[name]} too; {hint}")
    return list(lines)


_logger = logging.getLogger(__name__)

LONGEST = 120  # maximum characters of a name in a message
Known = tuple[str, Path | None]  # a name, and the file of a photograph with this stem, or None


def names_to_use(path: Path, argument: str, known: Iterable[Known], what: str) -> list[str]:
    """Read the names that a list chooses, which are all known and different."""
    matches, unknown = match_names(path, argument, known)
    if unknown or not matches:
        fault = f"lists {len(unknown)} {what}: {preview(unknown)}" if unknown else "has no name"
        raise DataError(f"{path}: {fault}; check the `{argument}` list, a name on each line")
    return _all_different(path, matches.items(), "remove one of them")


def names_to_leave_out(path: Path, argument: str, known: Iterable[Known], of: str) -> set[str]:
    """Read the names that a list leaves out; a warning in the log names those that are unknown."""
    names = list(known)
    matches, unknown = match_names(path, argument, names)
    if not matches:
        listed = f": {preview(unknown)}" if unknown else ""
        example = f" ({of} has {names[0][0]!r})" if names else ""
        raise DataError(
            f"{path}: of its {len(unknown)} names none is that of an object or a photograph of "
            f"{of}{listed}{example}; check the list, or set `{argument}` to null"
        )
    if unknown:
        _logger.warning(
            "%s: %d of its %d names are not in %s, and leave nothing out: %s",
            *(path, len(unknown), len(matches) + len(unknown), of, preview(unknown)),
        )
    return set(matches.values())


def match_names(
    path: Path, argument: str, known: Iterable[Known]
) -> tuple[dict[int, str], list[str]]:
    r"""Find the known names that the lines of a list mean by their first column, up to a tab.

    A line holds a name, or where it is the stem of a photograph also that of its file:
    `cat`, `cat.jpg`, `images/cat.jpg`, `images\cat.jpg`, or the whole path. Folders must be those
    of the file. Spaces and double quotes around a name, as spreadsheets and Windows write them, do
    not count unless they are part of it, nor does the way in which accents are composed (macOS
    and Linux differ).

    Returns known names by the numbers of their lines, and what the other lines have.
    """
    lines = read_lines(path, f"check the `{argument}` argument")
    texts = {number: line.split("\t")[0] for number, line in lines}
    forms: dict[str, list[tuple[int, tuple[str, ...]]]] = defaultdict(list)
    for number, text in texts.items():
        for form, folders in _forms(text):
            forms[_composed(form)].append((number, folders))
    matches: dict[int, str] = {}
    for name, file in known:
        for line, folders in forms.get(_composed(name), ()):
            parents = () if file is None else file.parent.absolute().parts
            if folders and parents[-len(folders) :] != folders:
                continue
            if matches.setdefault(line, name) != name:
                raise DataError(
                    f"{path}, line {line}: {texts[line]!r} can be {matches[line]!r} or {name!r}; "
                    "give the name of the file, with its suffix"
                )
    ordered = {number: matches[number] for number in texts if number in matches}
    return ordered, [text.strip() for number, text in texts.items() if number not in matches]


def read_classes(path: Path) -> list[str]:
    """Read names of classes, a line each, in the order of their numbers from 0."""
    classes: list[str] = []
    for number, line in read_lines(path):
        name, expected = line.strip(), len(classes) + 1
        if number != expected or name in classes:
            fault = f"{name!r} is there twice" if name in classes else f"line {expected} is blank"
            raise DataError(
                f"{path}: {fault}; each line must name the class of its number, and no other"
            )
        classes.append(name)
    return classes


def preview(names: Iterable[str], limit: int = 3) -> str:
    """Return the first of some names in their order, as part of a sentence.

    Names with characters that a terminal does not show, as the colours of `ls`, with spaces at
    their ends or of more than `LONGEST` characters stand in quotes, with escapes and cut.
    """
    ordered = sorted(names)
    shown = [
        name
        if name.isprintable() and name == name.strip() and len(name) <= LONGEST
        else f"{name!r:.{LONGEST}}"
        for name in ordered[:limit]
    ]
    return ", ".join([*shown, *(["..."] if ordered[limit:] else [])])


def _forms(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names that a line can mean, each with the folders before it."""
    bare = text.strip()
    quoted = len(bare) > 2 and bare[0] == bare[-1] == '"'
    within = bare[1:-1].replace('""', '"') if quoted else bare
    for name in dict.fromkeys((text, bare, within)):
        yield name, ()
        for path in (PurePosixPath(name), PureWindowsPath(name)):
            folders = tuple(part.replace("\\", "/") for part in path.parts[:-1])
            if path.suffix.lower() in IMAGE_SUFFIXES:
                yield path.stem, folders
            elif folders:
                yield path.name, folders


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)
