"""Owns the IO binding of a tuned session: one object for the caller, whichever session is selected.

An ``onnxruntime.IOBinding`` belongs to one session. This one keeps a journal of what was bound and binds
it again when another session is to run; the caller's buffers are handed on and never copied or read, but
for the values of inputs that steer the computation.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime import IOBinding, OrtValue
from onnxruntime.capi import _pybind_state as native

from ort_stacktune.failures import invalid
from ort_stacktune.ort.devices import HOST, memory_of_word, owned_memory
from ort_stacktune.ort.recipes import Provider
from ort_stacktune.ort.request import OutputTarget
from ort_stacktune.ort.tensors import DeviceTensor, Tensor, before_exit, let_go, tensor_at, tensor_of

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_Providers = Callable[[], tuple[Provider, ...]]

_MAX_ROUTES = 256


@dataclass(slots=True)
class _Bound:
    """One bound input or output: how to bind it again, and what is known of its buffer.

    What a binding by address relies on is kept here as long as it is bound.
    """

    method: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    keep: Any = None
    known: Tensor | OutputTarget | str | None = None


class TunedBinding(IOBinding):  # type: ignore[misc]
    """An ``onnxruntime.IOBinding`` that works with whichever session is selected.

    Bind, run through :meth:`TunedSession.run_with_iobinding` and read as always; it may be bound again with
    other shapes and on other devices. Two threads may not use one binding at once, as with any.
    """

    def __init__(self, session: InferenceSession) -> None:
        super().__init__(session)
        self.owner = session._sess
        self.bound_now = session._sess
        self._inputs: dict[str, _Bound] = {}
        self._outputs: dict[str, _Bound] = {}
        self._given: weakref.WeakSet[Any] = weakref.WeakSet()
        self.route: Any = None
        self.routes: dict[Any, Any] = {}
        before_exit(self._let_go)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_cpu_input``."""
        if isinstance(arr_on_cpu, np.ndarray) and not arr_on_cpu.flags.c_contiguous:
            # Bound now, it would be copied now; bound again later, it has to have the values of now.
            arr_on_cpu = np.ascontiguousarray(arr_on_cpu)
        self._bind(self._inputs, name, "bind_cpu_input", (name, arr_on_cpu), {})

    def bind_input(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_input``, or with a name and an array where it is.

        An array is a numpy array, an ``OrtValue``, or any object with ``__cuda_array_interface__`` or
        ``__dlpack__``, such as one of cupy. It is bound without a copy and kept alive as long as it is bound;
        what writes to it has to be done before the run.
        """
        if len(arguments) == 1 and not keywords and not isinstance(arguments[0], str):
            self._bind_array(self._inputs, name, arguments[0])
        else:
            self._bind(self._inputs, name, "bind_input", (name, *arguments), keywords)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_ortvalue_input``."""
        self._bind(self._inputs, name, "bind_ortvalue_input", (name, ortvalue), {})

    def bind_output(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_output``, or with a name and an array as in :meth:`bind_input`."""
        if len(arguments) == 1 and not keywords and not isinstance(arguments[0], str):
            self._bind_array(self._outputs, name, arguments[0])
        else:
            self._bind(self._outputs, name, "bind_output", (name, *arguments), keywords)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_ortvalue_output``."""
        self._bind(self._outputs, name, "bind_ortvalue_output", (name, ortvalue), {})

    def get_outputs(self) -> list[Any]:
        """As ``onnxruntime.IOBinding.get_outputs``."""
        values: list[Any] = super().get_outputs()
        for value in values:
            # A value has to go before the session it came out of, which is closed when its choice is void.
            value._came_out_of = self.bound_now
            self._given.add(value)
        return values

    def clear_binding_inputs(self) -> None:
        """As ``onnxruntime.IOBinding.clear_binding_inputs``."""
        super().clear_binding_inputs()
        self._inputs.clear()
        self.route = None

    def clear_binding_outputs(self) -> None:
        """As ``onnxruntime.IOBinding.clear_binding_outputs``."""
        super().clear_binding_outputs()
        self._outputs.clear()
        self.route = None

    def move_to(self, native_session: Any) -> Any:
        """Makes the bound buffers those of a session's run and returns its native binding.

        Args:
            native_session: The native session behind an ``onnxruntime.InferenceSession``.
        """
        if native_session is not self.bound_now:
            self._iobinding = native.SessionIOBinding(native_session)
            # Newer builds check values against the session that a binding belongs to.
            self._session = native_session
            self.bound_now = native_session
            for bound in (*self._inputs.values(), *self._outputs.values()):
                getattr(super(), bound.method)(*bound.arguments, **bound.keywords)
        return self._iobinding

    def tensors(self, providers: _Providers) -> tuple[dict[str, Tensor], tuple[OutputTarget, ...]] | str:
        """Returns what is bound, inputs as views of the caller's buffers, or why trials can't repeat it.

        Args:
            providers: Tells the session's providers, which decide whose memory a device's is.
        """
        feeds: dict[str, Tensor] = {}
        for name, bound in self._inputs.items():
            known = _known(name, bound, providers)
            if isinstance(known, str):
                return f"input {name!r} {known}"
            assert not isinstance(known, OutputTarget)
            feeds[name] = known
        targets = []
        outputs: dict[str, Tensor] = {}
        for name, bound in self._outputs.items():
            known = _known(name, bound, providers)
            if isinstance(known, str):
                return f"output {name!r} {known}"
            if isinstance(known, OutputTarget):
                targets.append(known)
                continue
            outputs[name] = known
            memory = known.memory if isinstance(known, DeviceTensor) else HOST
            targets.append(OutputTarget(name, (known.dtype.str.lstrip("<=|"), tuple(known.shape)), memory))
        for name, out in outputs.items():
            for source, fed in feeds.items():
                if _share_memory(out, fed):
                    return f"output {name!r} shares memory with input {source!r}: its state is kept in place"
        return feeds, tuple(targets)

    def question(self, providers: _Providers) -> tuple[Any, ...] | None:
        """Returns what of the buffers decides who serves them; ``None`` where trials can't repeat it."""
        bound = self.tensors(providers)
        if isinstance(bound, str):
            return None
        feeds, targets = bound
        facts = [(name, fed.dtype, fed.shape, getattr(fed, "memory", HOST)) for name, fed in feeds.items()]
        return (*facts, *targets)

    def take(self, question: Any, route: Any) -> None:
        """Takes a route for what is bound now, and for whatever asks the same question later."""
        if len(self.routes) >= _MAX_ROUTES:
            self.routes.clear()
        self.route = self.routes[question] = route

    def _bind_array(self, journal: dict[str, _Bound], name: str, array: Any) -> None:
        """Binds an array where it is: in host memory, or in a device's by its address or through DLPack."""
        what = "input" if journal is self._inputs else "output"
        if isinstance(array, OrtValue):
            self._bind(journal, name, f"bind_ortvalue_{what}", (name, array), {})
        elif isinstance(array, np.ndarray) and what == "input":
            self.bind_cpu_input(name, array)
        elif isinstance(array, np.ndarray):
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise invalid(f"the array for output {name!r} has to be contiguous and writeable; it is not")
            self._bind(
                journal, name, f"bind_ortvalue_{what}", (name, OrtValue.ortvalue_from_numpy(array)), {}
            )
        elif (described := getattr(array, "__cuda_array_interface__", None)) is not None:
            arguments = (name, *_at_its_address(name, array, described))
            self._bind(journal, name, f"bind_{what}", arguments, {}, keep=array)
        elif hasattr(array, "__dlpack__") and hasattr(OrtValue, "from_dlpack"):
            self._bind(journal, name, f"bind_ortvalue_{what}", (name, OrtValue.from_dlpack(array)), {})
        elif hasattr(array, "__dlpack__"):
            # Older builds take none, but an array in host memory is an array.
            self._bind_array(journal, name, np.from_dlpack(array))
        else:
            raise invalid(
                f"{what} {name!r} was given a {type(array).__name__}; expected a numpy array, an OrtValue, or"
                " an object with __cuda_array_interface__ or __dlpack__"
            )

    def _bind(
        self,
        journal: dict[str, _Bound],
        name: str,
        method: str,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        keep: Any = None,
    ) -> None:
        getattr(super(), method)(*arguments, **keywords)
        journal[name] = _Bound(method, arguments, keywords, keep)
        self.route = None

    def _let_go(self) -> None:
        self._inputs.clear()
        self._outputs.clear()
        let_go((self, *self._given))


def _at_its_address(name: str, array: Any, described: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the arguments that bind an array of CUDA's by its address."""
    dtype, shape = np.dtype(described["typestr"]), tuple(described["shape"])
    strides = described.get("strides")
    if strides is not None and tuple(strides) != _contiguous_strides(shape, dtype.itemsize):
        raise invalid(
            f"the array for {name!r} is not contiguous in memory, which a binding needs;"
            " make a contiguous copy of it first"
        )
    device = array.__dlpack_device__()[1] if hasattr(array, "__dlpack_device__") else 0
    return "cuda", int(device), dtype.type, shape, described["data"][0]


def _contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _known(name: str, bound: _Bound, providers: _Providers) -> Tensor | OutputTarget | str:
    """Reads what is bound, once."""
    if bound.known is not None:
        return bound.known
    if bound.method == "bind_output" and _named_arguments(bound).get("buffer_ptr") is None:
        known: Tensor | OutputTarget | str = _allocated(name, bound, providers)
    else:
        known = _tensor(bound, providers)
    bound.known = known
    return known


def _allocated(name: str, bound: _Bound, providers: _Providers) -> OutputTarget | str:
    """Returns the target of an output that the session allocates, or why trials can't repeat it."""
    given = _named_arguments(bound)
    word = str(given.get("device_type", "cpu"))
    if word == HOST.kind:
        return OutputTarget(name)
    known = providers()
    memory = memory_of_word(word, int(given.get("device_id", 0)), known)
    if memory is None or memory not in owned_memory(known):
        return f"is wanted in memory of {word}, which this session can't reach"
    return OutputTarget(name, None, memory)


def _tensor(bound: _Bound, providers: _Providers) -> Tensor | str:
    """Returns a bound buffer: a view of one in host memory, a description of one on a device."""
    if bound.method == "bind_cpu_input":
        array = bound.arguments[1]
        plain = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
        return array if plain else "is no array of numbers"
    if bound.method in ("bind_ortvalue_input", "bind_ortvalue_output"):
        return tensor_of(bound.arguments[1], providers)
    given = _named_arguments(bound)
    try:
        dtype = np.dtype(given["element_type"])
    except TypeError:
        return "is bound by its address as a type that numpy does not have"
    shape, address = tuple(given["shape"]), given["buffer_ptr"]
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind not in "fiub" or count == 0 or not address:
        return "is bound by an address and holds no numbers"
    if given["device_type"] == HOST.kind:
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype).reshape(shape)
    return tensor_at(given["device_type"], given["device_id"], dtype, shape, address, providers())


def _share_memory(one: Tensor, other: Tensor) -> bool:
    if isinstance(one, DeviceTensor):
        return isinstance(other, DeviceTensor) and one.overlaps(other)
    return not isinstance(other, DeviceTensor) and np.may_share_memory(one, other)


def _named_arguments(bound: _Bound) -> dict[str, Any]:
    names = ("name", "device_type", "device_id", "element_type", "shape", "buffer_ptr")
    return {**dict(zip(names, bound.arguments, strict=False)), **bound.keywords}
