"""A dispatch mode that records the ops of a forward pass on tensors without content.

Every op is recorded with all its arguments; a tensor among them is a parameter or buffer of the module, an input, a result of a recorded op, or a constant
of the host, of which the content is recorded. Anything else ends the recording. So a trace is a program that computes what the module
does, whatever the module's Python code looked at on the way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .frames import Places
from .trace import Op, Trace
from .words import NotTraced, content_word, form, plain_word

__all__ = ["recorder"]

_NAMESPACES = ("aten", "prims")
_SAME = ("aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift_fresh_copy")
"""Ops whose result has the elements of their operand, and for constants alone another memory."""
_LIFTS = ("aten::lift_fresh", "aten::lift_fresh_copy")
_CHANGES_MEMORY = ("aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_")
_DRAWLESS = "aten::_scaled_dot_product"
"""Attention, which draws only for a dropout; its other arguments are recorded."""
_READS = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero")
"""Reads of a constant's content, which is recorded where the constant is used. Other tensors here have no content to read."""


def recorder(mode: Any, fakes: Mapping[int, Any], labels: Mapping[int, str], places: bool) -> Any:
    """Return a dispatch mode to enter after ``mode``, a FakeTensorMode.

    fakes:  tensors without content in place of the module's own, by the identity of these. labels: their names, and those of inputs.
    places: whether the places of ops are recorded.
    """
    return _recorder_class()(mode, fakes, labels, places)


@functools.cache
def _recorder_class() -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    device_of = torch.ops.prim.device.default

    class OpRecorder(TorchDispatchMode):
        """Records into ``trace``. The first thing that is not traced is in ``refused``, also if the module handles the error."""

        def __init__(
            self, mode: Any, fakes: Mapping[int, Any], labels: Mapping[int, str], places: bool
        ) -> None:
            super().__init__()
            self.trace = Trace(places=Places() if places else None)
            self.refused = ""
            self._mode, self._fakes = mode, fakes
            self._numbers = {key: self.trace.named(label) for key, label in labels.items()}
            self._foreign = {fake.untyped_storage()._cdata for fake in fakes.values()}
            self._held: list[Any] = []
            self._shared: set[int] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is device_of:
                return func(*args)
            try:
                return self._call(func, args, kwargs or {}, sys._getframe(1))
            except Exception as error:
                self.refused = self.refused or str(error) or type(error).__name__
                raise

        def _call(self, func: Any, args: Any, kwargs: Any, frame: Any) -> Any:
            facts = _facts(func)
            if facts.refused:
                raise NotTraced(facts.refused)
            if facts.reads:
                if not all(isinstance(t, FakeTensor) for t in args if isinstance(t, torch.Tensor)):
                    raise NotTraced("a read of a tensor's content")
                return func(*args, **kwargs)
            words: list[Any] = []
            own_args = self._words(args, words, facts.lifts)
            for name, value in kwargs.items():
                words.append(name)
                kwargs = {**kwargs, name: self._words(value, words, facts.lifts)}
            for place in facts.written:
                written = kwargs.get(place) if isinstance(place, str) else own_args[place] if place < len(own_args) else None
                self._require_own(written, facts.changes_form)
            result = func(*own_args, **kwargs)
            if facts.same:
                (number,) = (w for w in words if isinstance(w, int))
                if facts.lifts:
                    self._foreign.add(result.untyped_storage()._cdata)
                self._held.append(result)
                self._shared.add(number)
                self._numbers[id(result)] = number
                return result
            trace = self.trace
            results: list[int] = []
            self._name(result, results)
            place = () if trace.places is None else trace.places.of(frame)
            trace.ops.append(Op(facts.name, words, results, bool(facts.written), place))
            return result

        def _words(self, value: Any, words: list[Any], lifts: bool) -> Any:
            """Append the words of a value, numbers for tensors, and return it with tensors without content."""
            cls = type(value)
            if cls is tuple or cls is list:
                words.append(f"({len(value)}")
                return cls(self._words(v, words, lifts) for v in value)
            if isinstance(value, torch.Tensor):
                number = self._numbers.get(id(value))
                if number is not None:
                    words.append(number)
                    return self._fakes.get(id(value), value)
                if isinstance(value, FakeTensor):
                    raise NotTraced("a tensor that no recorded op returned")
                words.append(self.trace.named(content_word(value)))
                if lifts:
                    return value
                fake = self._mode.from_tensor(value, static_shapes=True)
                self._held += (value, fake)
                self._foreign.add(fake.untyped_storage()._cdata)
                return fake
            words.append(plain_word(value))
            return value

        def _require_own(self, written: Any, changes_form: bool) -> None:
            """Require that recorded ops made the memory, and that no other tensor has the number of one that gets other sizes or strides."""
            for tensor in written if isinstance(written, tuple | list) else (written,):
                if not isinstance(tensor, torch.Tensor):
                    continue
                if tensor.untyped_storage()._cdata in self._foreign:
                    raise NotTraced("a write to an input, a constant, or a tensor of the module")
                if changes_form and self._numbers[id(tensor)] in self._shared:
                    raise NotTraced("a change of the sizes of a tensor with another name")

        def _name(self, result: Any, results: list[int]) -> None:
            if isinstance(result, torch.Tensor):
                number = self._numbers.get(id(result))
                if number is None:
                    if not isinstance(result, FakeTensor):
                        raise NotTraced(f"a result of class {type(result).__name__}")
                    number = self.trace.numbered(form(result))
                    self._numbers[id(result)] = number
                    self._held.append(result)
                results.append(number)
            elif isinstance(result, tuple | list):
                for part in result:
                    self._name(part, results)
            elif result is not None:
                raise NotTraced(f"a result of class {type(result).__name__}")

        def output(self, leaves: Iterable[Any]) -> None:
            """Record the outputs. Raise NotTraced."""
            for leaf in leaves:
                self._words(leaf, self.trace.outputs, False)

    return OpRecorder


class _Facts:
    """What the schema of an op says. refused: why a trace cannot have it. written: positions and names of arguments that it changes."""

    __slots__ = ("changes_form", "lifts", "name", "reads", "refused", "same", "written")

    def __init__(self, func: Any) -> None:
        import torch

        self.name, self.written, self.refused = str(func), (), ""
        self.same = self.lifts = self.reads = self.changes_form = False
        if not isinstance(func, torch._ops.OpOverload) or func.namespace not in _NAMESPACES:
            self.refused = f"the op {func}"
            return
        schema = func._schema
        self.name = f"{schema.name}.{func._overloadname}"
        self.same, self.lifts, self.reads = schema.name in _SAME, schema.name in _LIFTS, schema.name in _READS
        self.written = tuple(
            a.name if a.kwarg_only else i
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        )
        draws = torch.Tag.nondeterministic_seeded in func.tags and not schema.name.startswith(_DRAWLESS)
        self.changes_form = torch.Tag.inplace_view in func.tags
        if draws or schema.name in _CHANGES_MEMORY:
            self.refused = f"the op {self.name}"


_facts = functools.cache(_Facts)
