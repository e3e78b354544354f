from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, parser

import graphs
from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.graph import GraphFacts, InputFact, facts, frozen_dims, with_fixed_shapes
from ort_stacktune.ort.steering import STEERING_OPERANDS

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "own" : 1]>\n'


def parse(graph: str, functions: str = "") -> onnx.ModelProto:
    return parser.parse_model(HEAD + graph + functions)


def steering(graph: str, functions: str = "") -> tuple[str, ...]:
    return facts(parse(graph, functions)).steering


def session(model: onnx.ModelProto, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


# --- what a graph declares -----------------------------------------------------------------------------


def test_inputs_are_described_as_the_runtime_describes_them() -> None:
    for name in sorted(set(graphs.__all__) - {"external", "slowed"}):
        model = getattr(graphs, name)()
        found, live = facts(model), session(model)
        assert [fact.name for fact in found.inputs] == [arg.name for arg in live.get_inputs()]
        assert [fact.type for fact in found.inputs] == [arg.type for arg in live.get_inputs()]
        for fact, arg in zip(found.inputs, live.get_inputs(), strict=True):
            assert fact.dims == (tuple(arg.shape) if fact.type.startswith("tensor") else None)
        assert [fact.type for fact in found.outputs] == [arg.type for arg in live.get_outputs()]
        assert list(found.overridable) == [arg.name for arg in live.get_overridable_initializers()]
        assert found.name == model.graph.name


def test_dimensions_are_sizes_names_or_unknown() -> None:
    model = parse("g (float[2, N] x, float[] s, float y) => (float z) { z = Identity(x) }")
    model.graph.input.append(helper.make_tensor_value_info("u", 7, [None, 0]))
    model.graph.input[-1].type.tensor_type.shape.dim.add().dim_value = -1
    assert facts(model).inputs == (
        InputFact("x", "tensor(float)", (2, "N")),
        InputFact("s", "tensor(float)", None),
        InputFact("y", "tensor(float)", ()),
        InputFact("u", "tensor(int64)", (None, 0, None)),
    )


def test_types_of_every_kind_are_printed_as_the_runtime_prints_them() -> None:
    floats = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    sequence = helper.make_sequence_type_proto(floats)
    maps = helper.make_map_type_proto(onnx.TensorProto.INT64, floats)
    types = {
        "tensor(float8e4m3fn)": helper.make_tensor_type_proto(onnx.TensorProto.FLOAT8E4M3FN, None),
        "tensor(bfloat16)": helper.make_tensor_type_proto(onnx.TensorProto.BFLOAT16, None),
        "tensor(uint4)": helper.make_tensor_type_proto(onnx.TensorProto.UINT4, None),
        "tensor(string)": helper.make_tensor_type_proto(onnx.TensorProto.STRING, None),
        "sparse_tensor(float)": helper.make_sparse_tensor_type_proto(onnx.TensorProto.FLOAT, None),
        "seq(tensor(float))": sequence,
        "optional(seq(tensor(float)))": helper.make_optional_type_proto(sequence),
        "map(int64,tensor(float))": maps,
        "seq(map(int64,tensor(float)))": helper.make_sequence_type_proto(maps),
        "": onnx.TypeProto(),
    }
    inputs = [helper.make_value_info(f"i{i}", kind) for i, kind in enumerate(types.values())]
    model = helper.make_model(helper.make_graph([], "g", inputs, []))
    assert [fact.type for fact in facts(model).inputs] == list(types)
    model.graph.input[0].type.tensor_type.elem_type = 99
    assert facts(model).inputs[0].type == "tensor(type 99)"


def test_an_initializer_that_is_also_an_input_is_overridable_from_ir_version_4_on() -> None:
    model = graphs.overridable()
    assert facts(model).overridable == ("scale",)
    assert [fact.name for fact in facts(model).inputs] == ["x"]
    model.ir_version = 3
    model.opset_import[0].version = 8
    assert facts(model).overridable == ()
    assert [fact.name for fact in facts(model).inputs] == ["x"]
    assert session(model).get_overridable_initializers() == []


def test_a_sparse_initializer_is_no_input_either() -> None:
    model = parse("g (float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }")
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.array([2]), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert [fact.name for fact in facts(model).inputs] == ["x"]
    assert facts(model).overridable == ("w",)


def test_nodes_are_counted_in_subgraphs_and_called_functions_and_once_each() -> None:
    found = facts(
        parse(
            """g (bool c, float[2] x) => (float[2] y) {
                a = own.f(x)
                b = own.f(a)
                d = com.microsoft.Gelu(b)
                y = If (c) <
                    then_branch = t () => (float[2] p) { p = Relu(d) },
                    else_branch = e () => (float[2] q) { q = Neg(d) }>
            }""",
            '<domain: "own", opset_import: ["" : 21]> f (x) => (y) { y = Abs(x) }'
            '<domain: "own", opset_import: ["" : 21]> unused (x) => (y) { y = Sqrt(x) }',
        )
    )
    assert found.node_count == 7
    assert found.op_types == {
        "own:f": 2,
        "com.microsoft:Gelu": 1,
        "If": 1,
        "Relu": 1,
        "Neg": 1,
        "Abs": 1,
    }


# --- inputs that steer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("branching", ("mode",)),
        ("counted", ("times",)),
        ("sliced", ("count",)),
        ("gather_fails", ()),
        ("int_division", ()),
        ("mlp", ()),
        ("optional_input", ()),
        ("positive_rows", ()),
        ("with_state", ()),
    ],
)
def test_inputs_that_steer_are_found_in_the_sample_graphs(name: str, expected: tuple[str, ...]) -> None:
    assert facts(getattr(graphs, name)()).steering == expected


@pytest.mark.parametrize(
    ("inputs", "node"),
    [
        ("int64 n", "Range(n, n, n)"),
        ("int64[2] n", "Reshape(x, n)"),
        ("int64[2] n", "Expand(x, n)"),
        ("int64[2] n", "Slice(x, n, n)"),
        ("int64[1] n", "TopK(x, n)"),
        ("int64[2] n", "Tile(x, n)"),
        ("int64[4] n", "Pad(x, n)"),
        ("int64[1] n", 'Pad(x, x, "", n)'),
        ("int64[2] n", "ConstantOfShape(n)"),
        ("float[2] n", 'Resize(x, "", n)'),
        ("int64[2] n", 'Resize(x, "", "", n)'),
        ("int64 n", "OneHot(x, n, x)"),
        ("int64[1] n", "Squeeze(x, n)"),
        ("int64[1] n", "Unsqueeze(x, n)"),
        ("int64[2] n", "Split(x, n)"),
        ("int64[1] n", "ReduceSum(x, n)"),
        ("int64[1] n", "ReduceLogSumExp(x, n)"),
        ("int64 n", "Trilu(x, n)"),
        ("int32 n", "CumSum(x, n)"),
        ("int64 n", "SequenceAt(x, n)"),
        ("int64 n", "HannWindow(n)"),
        ("int64 n", "DFT(x, n)"),
        ("int64 n", "NonMaxSuppression(x, x, n)"),
        ("int32 n", "com.microsoft.GroupQueryAttention(x, x, x, x, x, x, n)"),
    ],
)
def test_an_operand_that_decides_a_shape_steers(inputs: str, node: str) -> None:
    node = node.replace('""', "")
    assert steering(f"g (float[2, 3] x, {inputs}) => (float[N, M] y) {{ y = {node} }}") == ("n",)


def test_the_table_points_at_operands_whose_names_say_that_they_steer() -> None:
    said = {
        "axes", "axis", "block_shape", "cond", "depth", "dft_length", "ends", "frame_length", "frame_step",
        "image_shape", "input", "K", "k", "limit", "M", "max_output_boxes_per_class", "num_mel_bins",
        "output_shape", "pads", "position", "repeats", "roi", "scales", "shape", "size", "sizes", "split",
        "start", "starts", "delta", "steps",
    }  # fmt: skip
    for (domain, op), positions in STEERING_OPERANDS.items():
        if domain == "" and onnx.defs.has(op):
            schema = onnx.defs.get_schema(op)
            names = [] if schema.deprecated else [operand.name for operand in schema.inputs]
            for position in positions:
                assert position >= len(names) or names[position] in said, (op, names[position])


def test_a_value_is_followed_through_the_nodes_that_compute_it() -> None:
    assert steering(
        """g (float[N, 3] x, int32 n, int64[2] data) => (float[A, B] y) {
            three = Constant <value = int64[1] {3}> ()
            wide = Cast <to = 7> (n)
            row = Unsqueeze(wide, three)
            shape = Concat <axis = 0> (row, three)
            y = Reshape(x, shape)
        }"""
    ) == ("n",)


def test_a_shape_is_no_value() -> None:
    assert (
        steering(
            """g (float[N, 3] x, int64[N] ids) => (float[A, B] y) {
                shape = Shape(ids)
                size = Size(ids)
                both = Concat <axis = 0> (shape, size)
                y = Reshape(x, both)
            }"""
        )
        == ()
    )


def test_initializers_steer_nothing_even_when_they_can_be_overridden() -> None:
    model = parse("g (float[N] x, int64[1] s) => (float[M] y) { y = Reshape(x, s) }")
    assert facts(model).steering == ("s",)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "s"))
    assert facts(model).steering == ()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("int64[1000]", True),
        ("uint8[2, 2]", True),
        ("bool", True),
        ("float", True),
        ("float[2]", True),
        ("double[K]", True),
        ("float16[4]", True),
        ("float[16000]", False),
        ("float[1, 2]", False),
        ("float[]", False),
        ("string", False),
    ],
)
def test_only_whole_numbers_flags_and_short_floats_count(declared: str, expected: bool) -> None:
    found = steering(
        f"""g (float[N] x, {declared} v) => (float[M] y) {{
            w = own.Unknown(v)
            y = Reshape(x, w)
        }}"""
    )
    assert found == (("v",) if expected else ())


def test_values_captured_by_nested_branches_are_followed() -> None:
    assert steering(
        """g (bool c, float[N] x, int64[1] a, int64[1] b, int64[1] idle) => (float[M] y, int64[1] z) {
            doubled = Add(a, a)
            z = Identity(idle)
            y = If (c) <
                then_branch = t () => (float[M] p) {
                    p = If (c) <
                        then_branch = tt () => (float[M] pp) { pp = Reshape(x, doubled) },
                        else_branch = te () => (float[M] pe) { inner = Mul(doubled, b) pe = Tile(x, inner) }>
                },
                else_branch = e () => (float[M] q) { q = Identity(x) }>
        }"""
    ) == ("c", "a", "b")


def test_what_a_branch_returns_is_followed_into_both_branches_and_the_condition() -> None:
    assert steering(
        """g (float[N] x, float f, int64[1] a, int64[1] b) => (float[M] y) {
            c = Cast <to = 9> (f)
            n = If (c) <
                then_branch = t () => (int64[1] p) { p = Identity(a) },
                else_branch = e () => (int64[1] q) { q = Neg(b) }>
            y = Reshape(x, n)
        }"""
    ) == ("f", "a", "b")


def test_names_reused_in_sibling_branches_are_not_confused() -> None:
    assert steering(
        """g (bool c, float[N] x, int64[1] a, int64[1] b) => (float[M] y) {
            y = If (c) <
                then_branch = t () => (float[M] p) { s = Identity(a) p = Reshape(x, s) },
                else_branch = e () => (float[M] q) { s = Identity(b) r = Cast <to = 1> (s) q = Add(x, r) }>
        }"""
    ) == ("c", "a")


LOOP = """g (int64 m, bool c, float[N] x, int64[1] a, int64[1] b, int64[1] free)
    => (int64[1] s, int64[1] t) {{
    s, t = Loop (m, c, a, b) <
        body = body (int64 i, bool go, int64[1] p, int64[1] q) => (bool on, int64[1] p2, int64[1] q2) {{
            on = {on}
            p2 = {p2}
            q2 = Identity(q)
            used = {used}
        }}>
}}"""


def test_a_loop_is_steered_by_its_count_and_condition() -> None:
    plain = LOOP.format(on="Identity(go)", p2="Identity(p)", used="Neg(p)")
    assert steering(plain) == ("m", "c")


def test_a_condition_computed_in_the_body_is_followed_to_the_first_values() -> None:
    assert steering(LOOP.format(on="Cast <to = 9> (p)", p2="Identity(p)", used="Neg(p)")) == ("m", "c", "a")


def test_values_carried_from_turn_to_turn_are_followed() -> None:
    # p steers, and becomes in the next turn what q was in this one.
    moved = LOOP.format(on="Identity(go)", p2="Add(q, free)", used="Reshape(x, p)")
    assert steering(moved) == ("m", "c", "a", "b", "free")


def test_what_a_loop_returns_is_followed_into_its_body() -> None:
    graph = LOOP.format(on="Identity(go)", p2="Add(p, free)", used="Neg(p)")
    model = parse(graph)
    model.graph.node.append(helper.make_node("Tile", ["x", "s"], ["tiled"]))
    assert facts(model).steering == ("m", "c", "a", "free")


def test_states_of_a_scan_are_followed_and_scanned_data_too() -> None:
    scan = """g (float[N] x, int64[1] a, int64[T, 1] many, int64[T, 1] idle) => (int64[1] s, int64[T, 1] o) {{
        s, o = Scan <num_scan_inputs = 2,
            body = body (int64[1] p, int64[1] e, int64[1] f) => (int64[1] p2, int64[1] o1) {{
                p2 = Identity(p)
                o1 = Add(p, f)
                used = {used}
            }}> (a, many, idle)
    }}"""
    assert steering(scan.format(used="Reshape(x, p)")) == ("a",)
    assert steering(scan.format(used="Reshape(x, e)")) == ("many",)
    assert steering(scan.format(used="Neg(e)")) == ()
    model = parse(scan.format(used="Neg(e)"))
    model.graph.node.append(helper.make_node("Reshape", ["x", "o"], ["shaped"]))
    assert facts(model).steering == ("a", "idle")


FUNCTIONS = """
<domain: "own", opset_import: ["" : 21, "own" : 1]>
outer (data, shape, other) => (y, sum) { y = own.inner(data, shape) sum = own.plus(other, other) }
<domain: "own", opset_import: ["" : 21]>
inner (data, shape) => (y) { s = Neg(shape) y = Reshape(data, s) }
<domain: "own", opset_import: ["" : 21]>
plus (a, b) => (c) { c = Add(a, b) }
"""


def test_an_operand_that_steers_within_a_function_steers_the_call() -> None:
    assert steering(
        """g (float[N] x, int64[1] n, int64[1] m) => (float[M] y, int64[1] z) {
            y, z = own.outer(x, n, m)
        }""",
        FUNCTIONS,
    ) == ("n",)


def test_two_calls_of_one_function_are_judged_apart() -> None:
    assert steering(
        """g (float[N] x, int64[1] n, int64[2, 2] ids) => (float[M] y, int64[2, 2] z) {
            shape = own.plus(n, n)
            z = own.plus(ids, ids)
            y = Reshape(x, shape)
        }""",
        FUNCTIONS,
    ) == ("n",)


def test_functions_that_call_each_other_in_a_ring_come_to_an_end() -> None:
    ring = """
    <domain: "own", opset_import: ["own" : 1]> f (a) => (b) { b = own.h(a) }
    <domain: "own", opset_import: ["own" : 1]> h (a) => (b) { b = own.f(a) }
    """
    graph = "g (float[N] x, int64[1] n) => (float[M] y) { s = own.f(n) y = Reshape(x, s) }"
    assert steering(graph, ring) == ("n",)


def test_an_unknown_operator_with_a_body_errs_on_the_safe_side() -> None:
    assert steering(
        """g (float[N] x, int64[1] n) => (float[M] y) {
            y = own.Repeat <body = b (int64[1] p) => (float[M] q) { q = Reshape(x, p) }> (n)
        }"""
    ) == ("n",)


def test_deep_nesting_and_long_chains_meet_no_limit_of_recursion() -> None:
    chain = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(10_000)]
    functions = [
        helper.make_function(
            "own",
            f"f{i}",
            ["a"],
            ["b"],
            [
                helper.make_node(
                    f"f{i + 1}" if i < 1999 else "Neg", ["a"], ["b"], domain="own" if i < 1999 else ""
                )
            ],
            [helper.make_opsetid("", 21)],
        )
        for i in range(2000)
    ]
    nodes = [
        *chain,
        helper.make_node("f0", ["v10000"], ["s"], domain="own"),
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", 1, ["N"]), info("v0", 7, [1])]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, []), functions=functions)
    assert facts(model).steering == ("v0",)
    body = helper.make_graph([helper.make_node("Reshape", ["x", "n"], ["y"])], "b", [], [info("y", 1, ["M"])])
    for _ in range(20):
        node = helper.make_node("If", ["c"], ["y"], then_branch=body)
        body = helper.make_graph([node], "b", [], [info("y", 1, ["M"])])
    body.input.extend([info("x", 1, ["N"]), info("n", 7, [1]), info("c", 9, [])])
    assert facts(helper.make_model(body)).steering == ("n", "c")


def test_the_work_grows_with_the_nodes_and_not_with_their_square() -> None:
    def calls(size: int) -> int:
        model = onnx.ModelProto(ir_version=10)
        model.graph.input.append(helper.make_tensor_value_info("v0", 7, [1]))
        for i in range(size):
            model.graph.node.append(helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]))
            model.graph.node.append(helper.make_node("Reshape", ["v0", f"v{i}"], [f"y{i}"]))
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            found = facts(model)
        finally:
            sys.setprofile(before)
        assert found.steering == ("v0",)
        return count

    assert calls(2000) < 2.2 * calls(1000)


# --- operators that draw -------------------------------------------------------------------------------


def test_random_operators_are_named_with_their_nodes() -> None:
    assert facts(graphs.random_op()).random == ("RandomNormalLike (draw)",)
    assert facts(graphs.mlp()).random == ()


def test_random_operators_are_found_in_subgraphs_and_in_called_functions_only() -> None:
    assert facts(
        parse(
            """g (bool c, float[2] x) => (float[2] y) {
                a = own.noise(x)
                y = If (c) <
                    then_branch = t () => (float[2] p) { p = RandomUniform <shape = [2]> () },
                    else_branch = e () => (float[2] q) { q = Bernoulli(a) }>
            }""",
            '<domain: "own", opset_import: ["" : 21]>'
            "noise (x) => (y) { n = RandomNormalLike(x) y = Add(x, n) }"
            '<domain: "own", opset_import: ["" : 21]> unused (x) => (y) { y = RandomUniformLike(x) }',
        )
    ).random == ("Bernoulli (q)", "RandomUniform (p)", "RandomNormalLike (n)")


def test_a_local_function_named_like_a_random_operator_is_judged_by_its_body() -> None:
    graph = "g (float[2] x) => (float[2] y) { y = Bernoulli(x) }"
    calm = '<domain: "", opset_import: ["" : 21]> Bernoulli (x) => (y) { y = Abs(x) }'
    assert facts(parse(graph)).random
    assert not facts(parse(graph, calm)).random


DROPOUT = """g (float[2] x, bool fed) => (float[2] y) <bool off = {{0}}, bool on = {{1}}> {{
    r = Constant <value = float {{0.5}}> ()
    made = Constant <value = bool {{0}}> ()
    computed = Not(on)
    y = Dropout({operands})
}}"""


@pytest.mark.parametrize(
    ("operands", "draws"),
    [
        ("x", False),
        ("x, r", False),
        ("x, r, off", False),
        ("x, r, made", False),
        ("x, r, on", True),
        ("x, r, fed", True),
        ("x, r, computed", True),
    ],
)
def test_dropout_draws_unless_it_is_certain_that_it_does_not_train(operands: str, draws: bool) -> None:
    found = facts(parse(DROPOUT.format(operands=operands)))
    assert found.random == (("Dropout (y)",) if draws else ())


def test_a_training_mode_that_can_be_overridden_or_is_stored_elsewhere_is_not_certain() -> None:
    model = parse(DROPOUT.format(operands="x, r, off"))
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    assert facts(model).random == ("Dropout (y)",)
    model = parse(DROPOUT.format(operands="x, r, off"))
    model.graph.input.append(helper.make_tensor_value_info("off", onnx.TensorProto.BOOL, []))
    assert facts(model).random == ("Dropout (y)",)


# --- fixed shapes --------------------------------------------------------------------------------------


def declared(**dims: tuple | None) -> GraphFacts:
    return GraphFacts("g", tuple(InputFact(name, "tensor(float)", d) for name, d in dims.items()), ())


@pytest.mark.parametrize(
    ("dims", "shapes", "expected"),
    [
        ({"x": ("N", 3, "H")}, {"x": (2, 3, 8)}, {"N": 2, "H": 8}),
        ({"x": ("N", 4), "s": ("N", 4)}, {"x": (2, 4), "s": (2, 4)}, {"N": 2}),
        ({"x": ("N", 4), "s": ("N", 4)}, {"x": (2, 4), "s": (3, 4)}, None),
        ({"x": (1, 3, "?", "?")}, {"x": (1, 3, 8, 9)}, None),
        ({"x": (1, 3, "?", "?")}, {"x": (1, 3, 8, 8)}, {"?": 8}),
        ({"x": (1, 3)}, {"x": (1, 3)}, {}),
        ({"x": (None, "W")}, {"x": (7, 5)}, {"W": 5}),
        ({"x": ("N", 4)}, {"x": (2, 5)}, None),
        ({"x": ("N", 4)}, {"x": (2,)}, None),
        ({"x": None}, {"x": (2, 5)}, {}),
        ({"x": ("N",), "left_out": ("M",)}, {"x": (0,), "initializer": (3,)}, {"N": 0}),
        ({"x": ()}, {"x": ()}, {}),
    ],
)
def test_symbolic_names_get_sizes_where_each_stands_for_one(
    dims: dict, shapes: dict, expected: dict | None
) -> None:
    assert frozen_dims(declared(**dims), shapes) == expected


def test_the_runtime_takes_the_sizes_and_then_knows_the_shapes() -> None:
    model = graphs.with_state()
    for rows in (0, 3):
        options = ort.SessionOptions()
        sizes = frozen_dims(facts(model), {"x": (rows, 4), "state": (rows, 4)})
        for name, size in (sizes or {}).items():
            options.add_free_dimension_override_by_name(name, size)
        assert [arg.shape for arg in session(model, options).get_inputs()] == [[rows, 4]] * 2


def test_a_copy_with_fixed_shapes_computes_the_same_and_declares_them() -> None:
    model = graphs.mlp(2, 8)
    before = model.SerializeToString()
    fixed = with_fixed_shapes(model, {"x": (3, 8)})
    assert model.SerializeToString() == before
    onnx.checker.check_model(fixed, full_check=True)
    live = session(fixed)
    assert [(arg.name, arg.shape) for arg in live.get_inputs()] == [("x", [3, 8])]
    assert [(arg.name, arg.shape) for arg in live.get_outputs()] == [("y", [3, 8])]
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    np.testing.assert_array_equal(live.run(None, {"x": x})[0], session(model).run(None, {"x": x})[0])


def test_one_name_for_two_sizes_and_wrong_declarations_further_down_do_no_harm() -> None:
    model = parse(
        """g (float[Q, Q] x, bool c) => (float[7, Q] y) {
            a = Relu(x)
            y = If (c) <
                then_branch = t () => (float[Q, Q] p) { b = Neg(a) p = Neg(b) },
                else_branch = e () => (float[Q, Q] q) { q = Abs(a) }>
        }"""
    )
    model.graph.value_info.append(helper.make_tensor_value_info("a", 1, [9, 9]))
    model.graph.node[1].attribute[0].g.value_info.append(helper.make_tensor_value_info("b", 1, [9, 9]))
    assert frozen_dims(facts(model), {"x": (2, 5)}) is None
    fixed = with_fixed_shapes(model, {"x": (2, 5), "c": ()})
    onnx.checker.check_model(fixed, full_check=True)
    assert facts(fixed).inputs[0].dims == (2, 5)
    assert facts(fixed).inputs[1].dims == ()
    assert facts(fixed).outputs[0].dims == (None, None)
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_array_equal(session(fixed).run(None, {"x": x, "c": np.array(True)})[0], x)


def test_an_undeclared_rank_becomes_the_given_shape_scalars_included() -> None:
    model = parse("g (float[] x, float[] s) => (float[] y) { y = Mul(x, s) }")
    fixed = facts(with_fixed_shapes(model, {"x": (2, 3), "s": ()}))
    assert [fact.dims for fact in fixed.inputs] == [(2, 3), ()]
    assert fixed.outputs[0].dims is None


def test_sequences_keep_their_type_and_lose_their_stale_sizes() -> None:
    fixed = with_fixed_shapes(graphs.sequence_output(), {"x": (3, 4)})
    element = fixed.graph.output[0].type.sequence_type.elem_type.tensor_type
    assert [dim.WhichOneof("value") for dim in element.shape.dim] == [None]
    assert facts(fixed).outputs[0].type == "seq(tensor(float))"


def test_references_to_external_data_stay_valid(tmp_path: Path) -> None:
    model = graphs.external(tmp_path / "model.onnx", 1)
    fixed = with_fixed_shapes(model, {"x": (2, 512)})
    assert fixed.graph.initializer == model.graph.initializer
    onnx.save_model(fixed, tmp_path / "fixed.onnx")
    x = np.ones((2, 512), np.float32)
    before, after = (
        ort.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for name in ("model.onnx", "fixed.onnx")
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"nope": (2, 8)}, "the model has no tensor input 'nope'; it has x"),
        ({"x": (2, 9)}, r"shape \(2, 9\) contradicts \('N', 8\)"),
        ({"x": (2,)}, r"shape \(2,\) contradicts"),
    ],
)
def test_shapes_that_can_not_be_are_refused_in_a_sentence(shapes: dict, expected: str) -> None:
    with pytest.raises(TuneFailure, match=expected) as failure:
        with_fixed_shapes(graphs.mlp(1, 8), shapes)
    assert failure.value.kind is FailureKind.INVALID_INPUT
