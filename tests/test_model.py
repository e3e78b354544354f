from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import graphs
from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.model import ModelSource


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    graphs.external(path, 2)
    return path


def digest(path_or_bytes: str | os.PathLike[str] | bytes) -> str:
    return ModelSource.of(path_or_bytes).digest()


def refused(path_or_bytes: Path | bytes) -> str:
    with pytest.raises(TuneFailure) as failure:
        digest(path_or_bytes)
    assert failure.value.kind is FailureKind.INVALID_INPUT
    return failure.value.message


def external_tensor(name: str = "w", **entries: object) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, dims=[4], data_type=onnx.TensorProto.FLOAT)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def adding(tensor: onnx.TensorProto) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "adding", [info("x", 1, [4])], [info("y", 1, [4])]
    )
    graph.initializer.append(tensor)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def write(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def test_a_source_hands_on_bytes_and_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ModelSource.of(b"model").argument() == b"model"
    for given in ("some/model.onnx", Path("some/model.onnx")):
        assert ModelSource.of(given).argument() == str(tmp_path / "some/model.onnx")


def test_a_link_is_opened_where_it_is_and_not_where_it_points_to(tmp_path: Path) -> None:
    store, shown = tmp_path / "store", tmp_path / "shown"
    store.mkdir()
    shown.mkdir()
    write(store / "a", adding(external_tensor(location="w.bin")))
    np.arange(4, dtype=np.float32).tofile(store / "b")
    (shown / "model.onnx").symlink_to("../store/a")
    (shown / "w.bin").symlink_to("../store/b")
    source = ModelSource.of(shown / "model.onnx")
    assert source.argument() == str(shown / "model.onnx")
    before = source.digest()
    np.arange(1, 5, dtype=np.float32).tofile(store / "b")
    assert source.digest() != before
    assert "w.bin" in refused(store / "a")


def test_anything_but_a_path_or_bytes_is_refused() -> None:
    with pytest.raises(TuneFailure, match="a model is a path or bytes, not int"):
        ModelSource.of(3)  # type: ignore[arg-type]
    for both_or_none in (ModelSource, lambda: ModelSource("model.onnx", b"model")):
        with pytest.raises(TuneFailure, match="exactly one"):
            both_or_none()


def test_a_large_model_is_not_printed() -> None:
    assert len(repr(ModelSource.of(bytes(1000)))) < 100


def test_the_digest_is_that_of_the_content_and_not_of_the_name(tmp_path: Path) -> None:
    data = graphs.mlp().SerializeToString()
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    first.write_bytes(data)
    second.write_bytes(data)
    assert len(digest(first)) == 32
    assert digest(first) == digest(second) == digest(data)
    assert digest(graphs.mlp(seed=1).SerializeToString()) != digest(data)


def test_one_changed_weight_changes_the_digest_though_size_and_time_stay(model_path: Path) -> None:
    weights = model_path.with_name("model.onnx.data")
    before, stat = digest(model_path), weights.stat()
    assert digest(model_path) == before
    with weights.open("r+b") as file:
        file.seek(1_500_000)
        byte = file.read(1)
        file.seek(1_500_000)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert digest(model_path) != before


def test_bytes_that_no_tensor_uses_do_not_count(model_path: Path) -> None:
    before = digest(model_path)
    with model_path.with_name("model.onnx.data").open("ab") as file:
        file.write(b"something else")
    assert digest(model_path) == before


def test_the_digest_survives_a_move_of_the_directory(model_path: Path, tmp_path: Path) -> None:
    before = digest(model_path)
    (tmp_path / "elsewhere").mkdir()
    for path in (model_path, model_path.with_name("model.onnx.data")):
        path.rename(tmp_path / "elsewhere" / path.name)
    assert digest(tmp_path / "elsewhere" / "model.onnx") == before


def test_external_data_of_bytes_lies_in_the_working_directory(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = model_path.read_bytes()
    monkeypatch.chdir(model_path.parent)
    assert digest(data) == digest(model_path)
    monkeypatch.chdir("/")
    assert "model.onnx.data" in refused(data)


def test_the_region_read_is_the_one_that_the_runtime_reads(tmp_path: Path) -> None:
    # Without a length, or with 0, the runtime takes what the shape needs from the offset on.
    np.arange(8, dtype=np.float32).tofile(tmp_path / "w.bin")
    for entries in ({"offset": 8}, {"offset": 8, "length": 0}, {"offset": 8, "length": 16}):
        path = write(tmp_path / "model.onnx", adding(external_tensor(location="w.bin", **entries)))
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(None, {"x": np.zeros(4, np.float32)})[0], [2, 3, 4, 5])
        del session
        before = digest(path)
        changed = np.arange(8, dtype=np.float32)
        changed[0] = 9
        changed.tofile(tmp_path / "w.bin")
        assert digest(path) == before
        changed[5] = 9
        changed.tofile(tmp_path / "w.bin")
        assert digest(path) != before
        np.arange(8, dtype=np.float32).tofile(tmp_path / "w.bin")


def test_an_empty_tensor_at_the_end_of_the_file_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    tensor = external_tensor(location="w.bin", offset=16, length=0)
    tensor.dims[:] = [0]
    assert len(digest(write(tmp_path / "model.onnx", adding(tensor)))) == 32


def test_regions_that_overlap_or_come_in_any_order_count_in_full(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = adding(external_tensor(location="w.bin", offset=32, length=16))
    model.graph.initializer.append(external_tensor("v", location="w.bin", offset=0, length=16))
    model.graph.initializer.append(external_tensor("u", location="w.bin", offset=8, length=16))
    write(path, model)
    zeros = bytes(64)
    (tmp_path / "w.bin").write_bytes(zeros)
    before = digest(path)
    for place in range(64):
        (tmp_path / "w.bin").write_bytes(zeros[:place] + b"1" + zeros[place + 1 :])
        assert (digest(path) != before) == (place < 24 or 32 <= place < 48), place


def test_weights_packed_beforehand_count_too(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    tensor = external_tensor(location="w.bin", offset=0, length=16, prepacked_0="kernel|32;16;")
    path = write(tmp_path / "model.onnx", adding(tensor))
    before = digest(path)
    (tmp_path / "w.bin").write_bytes(bytes(63) + b"1")
    assert digest(path) != before


def test_external_data_is_found_wherever_a_tensor_can_be(tmp_path: Path) -> None:
    hidden = external_tensor(location="w.bin")
    value = helper.make_attribute("value", onnx.TensorProto())
    value.t.CopyFrom(hidden)
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(value)
    branch = helper.make_graph([constant], "branch", [], [])
    inner = helper.make_graph([helper.make_node("If", ["c"], ["o"], then_branch=branch)], "inner", [], [])
    sparse = onnx.SparseTensorProto(values=hidden, dims=[8])
    function = helper.make_function("f", "F", [], ["c"], [constant], [helper.make_opsetid("", 21)])
    plain = adding(external_tensor(location="w.bin"))
    del plain.graph.initializer[:]

    def variant(where: str) -> onnx.ModelProto:
        model = onnx.ModelProto()
        model.CopyFrom(plain)
        if where == "initializer":
            model.graph.initializer.append(hidden)
        elif where == "sparse initializer":
            model.graph.sparse_initializer.append(sparse)
        elif where == "attribute":
            model.graph.node.append(constant)
        elif where == "subgraph of a subgraph":
            model.graph.node.append(helper.make_node("If", ["c"], ["o"], then_branch=inner))
        else:
            model.functions.append(function)
        return model

    places = ("initializer", "sparse initializer", "attribute", "subgraph of a subgraph", "function")
    for where in places:
        path = write(tmp_path / "model.onnx", variant(where))
        (tmp_path / "w.bin").write_bytes(bytes(16))
        before = digest(path)
        (tmp_path / "w.bin").write_bytes(bytes(15) + b"1")
        assert digest(path) != before, where


def test_a_location_that_leads_upwards_is_opened_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(16))
    path = write(tmp_path / "sub" / "model.onnx", adding(external_tensor(location="../w.bin")))
    before = digest(path)
    (tmp_path / "w.bin").write_bytes(bytes(15) + b"1")
    assert digest(path) != before


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"location": "absent.bin"}, "absent.bin"),
        ({"location": "/w.bin"}, "expected a path relative to the model"),
        ({"offset": 0, "checksum": "location"}, "expected a path relative to the model"),
        ({"location": "w.bin", "offset": -1}, "expected whole numbers of 0 or more"),
        ({"location": "w.bin", "length": "many"}, "expected whole numbers of 0 or more"),
        ({"location": "w.bin", "length": 17}, "ends before byte 17"),
        ({"location": "w.bin", "offset": 32, "length": 4}, "ends before byte 36"),
        ({"location": "."}, "can't be read"),
        ({"location": "a\0b"}, "can't be read"),
    ],
)
def test_external_data_that_can_not_be_there_is_refused_in_a_sentence(
    tmp_path: Path, entries: dict, expected: str
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    assert expected in refused(write(tmp_path / "model.onnx", adding(external_tensor(**entries))))


def test_a_missing_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent.onnx") == (
        f"the model can't be read at {tmp_path / 'absent.onnx'}: No such file or directory"
    )
    assert "can't be read" in refused(tmp_path)


@pytest.mark.parametrize("data", [b"", b"no model", b"\x18\0\0\0ORTM location", bytes(100), b"location"])
def test_what_is_not_protobuf_has_a_digest_but_no_graph(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.ort"
    path.write_bytes(data)
    for source in (ModelSource.of(data), ModelSource.of(path)):
        assert source.graph() is None
        assert source.proto() is None
        assert len(source.digest()) == 32


def test_a_model_saved_in_the_runtimes_own_format_has_no_graph(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(graphs.mlp().SerializeToString(), options, providers=["CPUExecutionProvider"])
    source = ModelSource.of(tmp_path / "model.ort")
    assert source.graph() is None
    assert source.digest() != digest(graphs.mlp().SerializeToString())


def test_the_graph_is_read_without_its_external_data(model_path: Path) -> None:
    model_path.with_name("model.onnx.data").unlink()
    graph = ModelSource.of(model_path).graph()
    assert graph is not None
    assert [fact.name for fact in graph.inputs] == ["x"]


def test_external_data_is_noticed_wherever_its_mark_falls_in_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    path = write(tmp_path / "model.onnx", adding(external_tensor(location="w.bin")))
    whole = digest(path)
    for chunk in range(8, 40):
        monkeypatch.setattr("ort_stacktune.ort.model._CHUNK", chunk)
        assert digest(path) == whole
