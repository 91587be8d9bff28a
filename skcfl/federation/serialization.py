"""Messages as bytes and back: numbers, text, arrays and objects of known classes, never pickled.

A message is a number, a header of JSON and the bytes of its arrays.  The reader makes arrays of
booleans, integers, floats and text, local models and losses from the name of their class and their
parameters, and the few other classes that it knows, from their fields.  It calls nothing that
a message names.
"""

import hashlib
import importlib
import json
import re
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from math import prod

import numpy as np

from ..calls import CALLS
from ..exceptions import MessageError

#: First bytes of a message: the format and its version.
MAGIC = b"skcfl\x03\r\n"
# Bytes before the header: the format, the number of the message and the length of the header.
_BEFORE = len(MAGIC) + 16
#: Largest message that is read or written, in bytes; sites and transports may have another limit.
MAX_BYTES = 2**30
#: Largest header, in bytes: its JSON takes about ten times as much memory.
MAX_HEADER = 2**26
#: Most axes of an array; numpy allows 64.
MAX_AXES = 32
#: Longest axis of an array without entries, which takes no bytes but may be used as a length.
MAX_EMPTY = 2**31
#: Array data starts at multiples of so many bytes.
ALIGNMENT = 8

#: Packages of the classes in messages between a server and a site, and in jobs and results.
#: Classes of the first have a ``from_message``; objects of the others may have any attributes.
MESSAGES = ("skcfl.models",)
RESULTS = ("skcfl", "sklearn")
# Dataclasses of other modules that messages hold.
NAMED = {("skcfl.federation.handshake", "Handshake"), ("skcfl.federation.scaling", "Scaling")}

# Booleans, integers, floats, bytes and text, in the byte order of nearly all machines.
_DTYPE = re.compile(r"\|b1|\|[iu]1|<[iu][248]|<f[248]|\|S[1-9]\d{0,8}|<U[1-9]\d{0,8}")
#: Kinds of values that are no plain JSON, each a method of the reader and the key of its tree.
KINDS = {"array", "class", "dict", "dtype", "made", "number", "object", "objects", "tuple"}
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LARGEST_CODE_POINT = 0x10FFFF
_SURROGATES = 0xD800, 0xDFFF


@cache
def versions():
    """Version of skcfl, and a digest of the calls that it knows: both ends must agree on them."""
    table = {name: (call.down, call.up) for name, call in CALLS.items()}
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    return [version("skcfl"), digest[:16]]


def dumps(value, packages=None, max_bytes=MAX_BYTES, number=0):
    """A message as bytes.

    Parameters
    ----------
    value : object
        None, numbers, text, arrays; tuples, lists and dictionaries of them; objects of `packages`.
    packages : collection of str, default=None
        Packages or modules of the classes that it may hold; None is any: the reader decides.
    max_bytes : int, default=2**30
        Largest message.
    number : int, default=0
        Number of a request, which its reply repeats; 0 is none.

    Returns
    -------
    data : bytes

    Raises
    ------
    MessageError
        If it holds anything else, or is too large.
    """
    text, arrays = _header(value, packages)
    if len(text) > MAX_HEADER:
        raise MessageError(
            f"the message has {len(text)} bytes that are not in arrays, more than {MAX_HEADER}."
        )
    size = _BEFORE + len(text)
    parts = [MAGIC, number.to_bytes(8, "little"), len(text).to_bytes(8, "little"), text]
    for array in arrays:  # the message is the only copy of them
        parts += [bytes(-size % ALIGNMENT), np.ascontiguousarray(array)]
        size += -size % ALIGNMENT + array.nbytes
    if size > max_bytes:
        raise MessageError(f"the message has {size} bytes, more than {max_bytes=}.")
    return b"".join(parts)


def size_of(value):
    """Bytes of the message that :func:`dumps` would make."""
    text, arrays = _header(value, None)
    size = _BEFORE + len(text)
    for array in arrays:
        size += -size % ALIGNMENT + array.nbytes
    return size


def number_of(data):
    """Number of a message that bytes hold."""
    return int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")


def array_bytes(message):
    """Bytes of the arrays in a message."""
    if isinstance(message, dict):
        message = message.values()
    elif not isinstance(message, (tuple, list)):
        return getattr(message, "nbytes", 0)
    return sum(map(array_bytes, message))


def _header(value, packages):
    """The header of a message as text, and its arrays."""
    writer = _Writer(packages)
    tree = writer.tree(value)
    specs = [[array.dtype.str, array.shape] for array in writer.arrays]
    header = {"versions": versions(), "arrays": specs, "value": tree}
    return json.dumps(header, separators=(",", ":")).encode(), writer.arrays


def loads(data, trusted=(), packages=MESSAGES, max_bytes=MAX_BYTES, same_version=True):
    """The message that bytes hold.

    Parameters
    ----------
    data : bytes
        What was received.
    trusted : collection of str, default=()
        Packages or modules of the reader's own, whose classes messages may name, too.
    packages : collection of str, default=("skcfl.models",)
        Those of the classes that the reader knows.
    max_bytes : int, default=2**30
        Largest message.
    same_version : bool, default=True
        If True, a message of another version of skcfl or of its calls is refused.

    Returns
    -------
    message : object
        Its arrays are read-only and share memory with `data`.

    Raises
    ------
    MessageError
        If it is of another version, not whole, too large, or names an unknown class.
    """
    try:
        data = memoryview(data).cast("B")
        if len(data) > max_bytes:
            raise MessageError(f"the message has {len(data)} bytes, more than {max_bytes=}.")
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise MessageError("these bytes are no message of this version of skcfl.")
        start = _BEFORE
        end = start + int.from_bytes(data[start - 8 : start], "little")
        if end - start > MAX_HEADER or end > len(data):
            raise MessageError("the header is longer than the message.")
        header = json.loads(bytes(data[start:end]))
        theirs = header["versions"]
        if same_version and theirs != versions():
            raise MessageError(
                "both ends must have the same version of skcfl and of its calls: the sender has "
                f"{theirs!r:.80}, the reader {versions()}."
            )
        arrays = _arrays(header["arrays"], data, end)
        return _Reader(packages, trusted, arrays).value(header["value"])
    except MessageError:
        raise
    except Exception as error:  # whatever hostile bytes lead to
        raise MessageError(f"the message is malformed: {type(error).__name__}") from error


def _arrays(specs, data, position):
    """Arrays of some types and shapes in the bytes from a position to the end."""
    arrays = []
    for name, shape in specs:
        if not (isinstance(name, str) and _DTYPE.fullmatch(name)):
            raise MessageError(f"arrays of type {name!r:.40} are not allowed.")
        whole = all(type(size) is int and 0 <= size <= MAX_EMPTY for size in shape)
        if len(shape) > MAX_AXES or not whole:
            raise MessageError("an array has an impossible shape.")
        dtype, count = np.dtype(name), prod(shape)
        position += -position % ALIGNMENT
        if count * dtype.itemsize > len(data) - position:
            raise MessageError("an array is longer than the message.")
        array = np.frombuffer(data, dtype, count, position).reshape(shape)
        _check_entries(array)
        arrays.append(array)
        position += array.nbytes
    if position != len(data):
        raise MessageError("there are bytes after the end of the message.")
    return arrays


def _check_entries(array):
    """Raise a MessageError for bytes that are no booleans, or no text."""
    if array.dtype.kind == "b":
        valid = (array.view(np.uint8) <= 1).all()
    elif array.dtype.kind == "U":
        points = np.frombuffer(array, np.uint32)
        low, high = _SURROGATES
        valid = not ((points > _LARGEST_CODE_POINT) | ((points >= low) & (points <= high))).any()
    else:
        return
    if not valid:
        raise MessageError(f"entries of an array of type {array.dtype.str} are not valid.")


def _is_in(module, packages):
    return any(module == own or module.startswith(f"{own}.") for own in packages)


class _Writer:
    """Makes the tree of JSON of a message, and the list of its arrays."""

    def __init__(self, packages):
        self.packages, self.arrays = packages, []

    def tree(self, value):
        if isinstance(value, np.generic) and not isinstance(value, np.str_):
            return {"number": self._array(np.asarray(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.tree(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self.tree(k), self.tree(v)] for k, v in value.items()]}
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            plain = all(v is None or isinstance(v, bool | int | float | str) for v in value.flat)
            if not plain:
                raise MessageError("an array of objects holds more than numbers and text.")
            return {"objects": [self.tree(item) for item in value.flat], "shape": value.shape}
        if isinstance(value, np.ndarray):
            return {"array": self._array(value)}
        if isinstance(value, np.dtype):
            return {"dtype": value.str}
        if isinstance(value, type):
            return {"class": self._name(value)}
        if not hasattr(value, "__dict__"):
            raise MessageError(f"values of type {type(value).__name__} cannot be sent.")
        return self._object(value)

    def _array(self, array):
        dtype = array.dtype.newbyteorder("<")
        if dtype.kind in "US" and dtype.itemsize == 0:
            dtype = np.dtype(f"{dtype.kind}1")  # empty texts, too, take bytes
        array = np.asarray(array, dtype, order="C")
        if not _DTYPE.fullmatch(array.dtype.str):
            raise MessageError(f"arrays of type {array.dtype} cannot be sent.")
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _name(self, cls):
        module, name = cls.__module__, cls.__qualname__
        named = self.packages is None or (module, name) in NAMED
        if not named and not _is_in(module, self.packages):
            raise MessageError(
                f"objects of {module}.{name} cannot be sent, only numbers, text, arrays and what "
                f"is in {', '.join(self.packages) or 'no package'}: classes of your own need "
                "their module in trusted="
            )
        return [module, name]

    def _object(self, value):
        name = self._name(type(value))
        if hasattr(value, "to_message"):
            return {"made": name, "of": self.tree(value.to_message())}
        return {"object": name, "state": self.tree(vars(value))}


class _Reader:
    """Makes a value of a tree of JSON and a list of arrays."""

    def __init__(self, packages, trusted, arrays):
        self.packages, self.arrays = (*packages, *trusted), arrays
        # Values of a fit are no classes, except those that the reader trusts.
        self.in_fit = packages == MESSAGES
        self.values = trusted if self.in_fit else self.packages

    def value(self, tree):
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        kind = next(iter(tree), None)
        if kind not in KINDS:
            raise MessageError(f"values of kind {kind!r:.40} are unknown.")
        return getattr(self, f"_{kind}")(*tree.values())

    def _array(self, number):
        if type(number) is not int or not 0 <= number < len(self.arrays):
            raise MessageError("an array is missing.")
        return self.arrays[number]

    def _number(self, number):
        return self._array(number)[()]

    def _tuple(self, items):
        return tuple(map(self.value, items))

    def _dict(self, items):
        return {self.value(key): self.value(item) for key, item in items}

    def _objects(self, items, shape):
        if any(isinstance(item, list | dict) for item in items):
            raise MessageError("an array of objects holds more than numbers and text.")
        values = np.empty(len(items), dtype=object)
        values[:] = items
        return values.reshape(shape)

    def _dtype(self, name):
        if not _DTYPE.fullmatch(name):
            raise MessageError(f"type {name!r:.40} is not allowed.")
        return np.dtype(name)

    def _named(self, names):
        module, name = names
        # Lines of a log are not the sender's to write.
        where = repr(f"{module}.{name}")[1:-1][:200]
        known = _is_in(module, self.packages) or (module, name) in NAMED
        if not (known and _NAME.fullmatch(module) and name.isidentifier()):
            raise MessageError(
                f"it names {where}, which is not trusted here: classes of your own need "
                "their module in trusted="
            )
        found = getattr(importlib.import_module(module), name, None)
        # What a module has imported is not its own.
        if not isinstance(found, type) or found.__module__ != module:
            raise MessageError(f"it names {where}, which is no class of this module.")
        return found

    def _class(self, names):
        found = self._named(names)
        if not _is_in(found.__module__, self.values):
            raise MessageError(f"the class {found.__name__} is no value of a message.")
        return found

    def _object(self, names, state):
        cls, state = self._named(names), self.value(state)
        if hasattr(cls, "from_message"):
            raise MessageError(f"{cls.__name__} is made of parameters.")
        if tuple(names) in NAMED:
            # Other attributes could take the place of methods.
            if state.keys() != {field.name for field in fields(cls)}:
                raise MessageError(f"a {cls.__name__} has other fields.")
        elif self.in_fit:
            raise MessageError(f"messages hold no objects of {cls.__name__}.")
        made = cls.__new__(cls)
        vars(made).update(state)
        return made

    def _made(self, names, of):
        return self._named(names).from_message(self.value(of))
