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
from .op_facts import op_facts
from .results import KnownResults, Result
from .trace import DispatchedOp, OpTrace
from .words import NotTraced, content_word, form, form_of, plain_word

__all__ = ["empty_like_user", "recorder"]


def recorder(mode: Any, tensors: Mapping[str, Any], results: KnownResults, places: bool) -> Any:
    """Return a dispatch mode to enter after ``mode``, a FakeTensorMode.

    tensors: the module's own by name. results: those of earlier traces, which grow. places: whether the places of ops are recorded.
    """
    return _recorder_class()(mode, tensors, results, places)


def empty_like_user(mode: Any, tensor: Any) -> Any:
    """Return a tensor without content for one of a module or a call. Raise NotTraced for another class than PyTorch's own."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise NotTraced(f"a tensor of class {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise NotTraced("a tensor that is sparse, or a view as its conjugate or negative")
    if tensor.is_meta or tensor.storage_offset():
        return mode.from_tensor(tensor, static_shapes=True)
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return FakeTensor(mode, meta, tensor.device)


@functools.cache
def _recorder_class() -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
    from torch.utils._python_dispatch import TorchDispatchMode

    device_of = torch.ops.prim.device.default

    class OpRecorder(TorchDispatchMode):  # type: ignore[misc]
        """Records into ``trace``. The first thing that is not traced is in ``refused``, also if the module handles the error."""

        def __init__(
            self, mode: Any, tensors: Mapping[str, Any], results: KnownResults, places: bool
        ) -> None:
            super().__init__()
            self.trace = OpTrace(places=Places() if places else None)
            self.refused = ""
            self._mode, self._results = mode, results
            self._numbers: dict[int, int] = {}  # by the identity of tensors, all of which are held
            self._held: list[Any] = []
            self._fakes: dict[int, Any] = {}  # in place of the module's own, by their identity
            self._foreign: set[int] = set()  # memory that no recorded op made
            self._shared: set[int] = set()  # numbers that several tensors have
            self._constant: set[int] = set()  # numbers of tensors whose content PyTorch knows
            for name, tensor in tensors.items():
                if id(tensor) not in self._fakes:
                    self._fakes[id(tensor)] = fake = empty_like_user(mode, tensor)
                    self._add(f"tensor {name}", tensor, fake)

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # what is called within is not compiled anyway, and a wrapper would be called for each op

        def input(self, name: str, tensor: Any) -> Any:
            """Return a tensor without content for one of the call."""
            fake = empty_like_user(self._mode, tensor)
            self._add(f"input {name}", fake, fake, form_of(tensor))
            return fake

        def output(self, leaves: Iterable[Any]) -> None:
            """Record the outputs. Raise NotTraced."""
            for leaf in leaves:
                self._words(leaf, self.trace.outputs, False)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is device_of and isinstance(args[0], FakeTensor):
                return args[0].fake_device
            try:
                return self._call(func, args, kwargs or {}, sys._getframe(1))
            except Exception as error:
                self.refused = self.refused or str(error) or type(error).__name__
                raise

        def _add(self, name: str, tensor: Any, fake: Any, text: str = "") -> int:
            number = self.trace.named(name, text or form_of(tensor))
            self._numbers[id(tensor)] = number
            self._foreign.add(fake.untyped_storage()._cdata)
            self._held += (tensor, fake)
            return number

        def _call(self, func: Any, args: Any, kwargs: Any, frame: Any) -> Any:
            facts = op_facts(func)
            if facts.refused:
                raise NotTraced(facts.refused)
            if facts.reads:
                if not all(isinstance(t, FakeTensor) for t in args if isinstance(t, torch.Tensor)):
                    raise NotTraced("a read of a tensor's content")
                return func(*args, **kwargs)
            words: list[Any] = []
            args = self._words(args, words, facts.lifts)
            if kwargs:
                kwargs = dict(kwargs)
                for name, value in kwargs.items():
                    words.append(name)
                    kwargs[name] = self._words(value, words, facts.lifts)
            for place in facts.written:
                written = (
                    kwargs.get(place)
                    if isinstance(place, str)
                    else args[place]
                    if place < len(args)
                    else None
                )
                self._require_own(written, facts.changes_form)
            trace = self.trace
            if facts.same:
                return self._renamed(self._copy(func, facts, args[0]), words, facts.lifts)
            result, texts = self._result(func, facts, args, kwargs, words)
            numbers: list[int] = []
            self._name(result, texts, numbers)
            if facts.changes_form:
                trace.forms[numbers[0]] = _form_of_fake(result)
            place = () if trace.places is None else trace.places.of(frame)
            trace.ops.append(DispatchedOp(facts.name, words, numbers, bool(facts.written), place))
            return result

        def _copy(self, func: Any, facts: Any, operand: Any) -> Any:
            if facts.lifts or operand.constant is not None:
                return func(operand)
            form = tuple(operand.shape), operand.stride(), operand.storage_offset(), operand.dtype
            return self._made("view", operand, Result(*form, operand.fake_device, ""))

        def _renamed(self, result: Any, words: list[Any], lifts: bool) -> Any:
            (number,) = (w for w in words if type(w) is int)
            if lifts:
                self._foreign.add(result.untyped_storage()._cdata)
            if result.constant is not None:
                self._constant.add(number)
            self._shared.add(number)
            self._held.append(result)
            self._numbers[id(result)] = number
            return result

        def _result(self, func: Any, facts: Any, args: Any, kwargs: Any, words: list[Any]) -> tuple[Any, Any]:
            """Return what an op returns, and the forms where they are known."""
            numbers = [w for w in words if type(w) is int]
            if not facts.kind or not self._constant.isdisjoint(numbers):
                return func(*args, **kwargs), None
            forms = self.trace.forms
            key = "\0".join([facts.name, *(forms[w] if type(w) is int else w for w in words)])
            known = self._results.get(key)
            operand = args[0] if args else None
            if known is None:
                result = func(*args, **kwargs)
                self._results.learn(key, result, facts.kind, operand)
                return result, None
            if facts.kind == "same":
                return operand, None
            parts = known if isinstance(known, list) or type(known) is tuple else (known,)
            texts = iter([p.text for p in parts])
            if parts is not known:
                return self._made(facts.kind, operand, known), texts
            return type(known)([self._made(facts.kind, operand, p) for p in parts]), texts

        def _made(self, kind: str, operand: Any, part: Result) -> Any:
            if kind == "new":
                with torch._C._DisableTorchDispatch():
                    meta = torch.empty_strided(part.shape, part.strides, dtype=part.dtype, device="meta")
                    return FakeTensor(self._mode, meta, part.device)
            with in_kernel_invocation_manager(self._mode):
                meta = torch.as_strided(operand, part.shape, part.strides, part.offset)
            with torch._C._DisableTorchDispatch():
                return FakeTensor(self._mode, meta, part.device)

        def _words(self, value: Any, words: list[Any], lifts: bool) -> Any:
            """Append the words of a value, numbers for tensors, and return it with tensors without content."""
            cls = type(value)
            if cls is tuple or cls is list:
                words.append(f"({len(value)}")
                return cls([self._words(v, words, lifts) for v in value])
            if isinstance(value, torch.Tensor):
                number = self._numbers.get(id(value))
                if number is not None:
                    words.append(number)
                    return self._fakes.get(id(value), value)
                if isinstance(value, FakeTensor):
                    raise NotTraced("a tensor that no recorded op returned")
                name = content_word(value)
                words.append(self.trace.named(name, form_of(value)))
                if lifts:
                    return value
                fake = self._mode.from_tensor(value, static_shapes=True)
                self._foreign.add(fake.untyped_storage()._cdata)
                self._held += (value, fake)
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

        def _name(self, result: Any, texts: Any, numbers: list[int]) -> None:
            if isinstance(result, torch.Tensor):
                number = self._numbers.get(id(result))
                if number is None:
                    if not isinstance(result, FakeTensor):
                        raise NotTraced(f"a result of class {type(result).__name__}")
                    number = self.trace.numbered(_form_of_fake(result) if texts is None else next(texts))
                    self._numbers[id(result)] = number
                    self._held.append(result)
                    if result.constant is not None:
                        self._constant.add(number)
                numbers.append(number)
            elif isinstance(result, tuple | list):
                for part in result:
                    self._name(part, texts, numbers)
            elif result is not None:
                raise NotTraced(f"a result of class {type(result).__name__}")

    return OpRecorder


def _form_of_fake(fake: Any) -> str:
    return form(fake.shape, fake.stride(), fake.storage_offset(), fake.dtype, fake.fake_device)
