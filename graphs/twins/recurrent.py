"""Owns pairs of recurrences: as one operator, and unrolled over their steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from graphs.building import OPSET
from graphs.twins.writing import Twin, Writer, pair, twin


class _Weights:
    """What a cell multiplies and adds: for input and state a matrix [1, gates * hidden, ...] and a bias."""

    def __init__(self, seed: int, gates: int, features: int, hidden: int) -> None:
        draw = np.random.default_rng(seed)
        bound = hidden**-0.5
        self.input, self.state = (
            draw.uniform(-bound, bound, (1, gates * hidden, columns)) for columns in (features, hidden)
        )
        self.biases = draw.uniform(-bound, bound, (1, 2 * gates * hidden))

    def given_to(self, to: Writer) -> tuple[str, str, str]:
        return to.constant(self.input), to.constant(self.state), to.constant(self.biases)


class _Steps:
    """Writes what each step of an unrolled cell begins with: its products, cut into gates."""

    def __init__(self, to: Writer, weights: _Weights, gates: int, hidden: int) -> None:
        self.to, self.gates = to, gates
        of_input, of_state = np.split(weights.biases[0], 2)
        self.input = to.constant(weights.input[0]), to.constant(of_input)
        self.state = to.constant(weights.state[0]), to.constant(of_state)
        self.sizes = to.ints(*[hidden] * gates)

    def product(self, value: str, weights: tuple[str, str]) -> str:
        return self.to.op("Gemm", value, *weights, transB=1)

    def cut(self, value: str) -> list[str]:
        names = [f"{value}_{i}" for i in range(self.gates)]
        self.to.op("Split", value, self.sizes, out=names, axis=1)
        return names

    def at(self, step: int) -> str:
        return self.to.op("Gather", "x", self.to.constant(step, np.int64), axis=0)

    def first(self, name: str) -> str:
        return self.to.op("Squeeze", name, self.to.ints(0))

    def close(self, states: list[str], **last: str) -> None:
        """Stacks the states of all steps into ``y``, and returns the last ones under their names."""
        to = self.to
        to.op("Concat", *[to.op("Unsqueeze", state, to.ints(0)) for state in states], out="y", axis=0)
        for name, value in last.items():
            to.op("Unsqueeze", value, to.ints(0), out=name)


def lstm(
    batch: int = 1,
    length: int = 64,
    features: int = 128,
    hidden: int = 128,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """A long short-term memory in one direction: a dozen operators a step, or LSTM.

    Inputs: ``x``, ``dtype`` [length, batch, features]; ``h`` and ``c``, ``dtype`` [1, batch, hidden].
    Outputs: ``y``, ``dtype`` [length, batch, hidden]; ``h_out`` and ``c_out``, ``dtype`` [1, batch, hidden].
    """
    weights = _Weights(seed, 4, features, hidden)
    unfused, fused = pair(dtype, opset)
    steps = _Steps(unfused, weights, 4, hidden)
    state, cell, states = steps.first("h"), steps.first("c"), []
    for step in range(length):
        products = steps.product(steps.at(step), steps.input), steps.product(state, steps.state)
        enter, leave, forget, new = steps.cut(unfused.op("Add", *products))
        kept = unfused.op("Mul", unfused.op("Sigmoid", forget), cell)
        added = unfused.op("Mul", unfused.op("Sigmoid", enter), unfused.op("Tanh", new))
        cell = unfused.op("Add", kept, added)
        state = unfused.op("Mul", unfused.op("Sigmoid", leave), unfused.op("Tanh", cell))
        states.append(state)
    steps.close(states, h_out=state, c_out=cell)

    outs = ["", "h_out", "c_out"]
    every = fused.op("LSTM", "x", *weights.given_to(fused), "", "h", "c", out=outs, hidden_size=hidden)
    fused.op("Squeeze", every, fused.ints(1), out="y")
    one = [1, batch, hidden]
    return twin(
        "lstm",
        (unfused, fused),
        [unfused.tensor("x", [length, batch, features]), unfused.tensor("h", one), unfused.tensor("c", one)],
        [unfused.tensor("y", [length, batch, hidden]), *(unfused.tensor(n, one) for n in outs[1:])],
    )


def gru(
    batch: int = 1,
    length: int = 64,
    features: int = 128,
    hidden: int = 128,
    dtype: npt.DTypeLike = np.float32,
    opset: int = OPSET,
    seed: int = 0,
) -> Twin:
    """A gated recurrent unit in one direction, the reset gate applied to the state's product, or GRU.

    Inputs: ``x``, ``dtype`` [length, batch, features], and ``h``, ``dtype`` [1, batch, hidden].
    Outputs: ``y``, ``dtype`` [length, batch, hidden], and ``h_out``, ``dtype`` [1, batch, hidden].
    """
    weights = _Weights(seed, 3, features, hidden)
    unfused, fused = pair(dtype, opset)
    steps = _Steps(unfused, weights, 3, hidden)
    one = unfused.constant(1.0)
    state, states = steps.first("h"), []
    for step in range(length):
        of_input = steps.cut(steps.product(steps.at(step), steps.input))
        of_state = steps.cut(steps.product(state, steps.state))
        update, reset = (
            unfused.op("Sigmoid", unfused.op("Add", of_input[gate], of_state[gate])) for gate in (0, 1)
        )
        new = unfused.op("Add", of_input[2], unfused.op("Mul", reset, of_state[2]))
        entered = unfused.op("Mul", unfused.op("Sub", one, update), unfused.op("Tanh", new))
        state = unfused.op("Add", entered, unfused.op("Mul", update, state))
        states.append(state)
    steps.close(states, h_out=state)

    every = fused.op(
        "GRU",
        "x",
        *weights.given_to(fused),
        "",
        "h",
        out=["", "h_out"],
        hidden_size=hidden,
        linear_before_reset=1,
    )
    fused.op("Squeeze", every, fused.ints(1), out="y")
    dims = [1, batch, hidden]
    return twin(
        "gru",
        (unfused, fused),
        [unfused.tensor("x", [length, batch, features]), unfused.tensor("h", dims)],
        [unfused.tensor("y", [length, batch, hidden]), unfused.tensor("h_out", dims)],
    )
