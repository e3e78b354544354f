from __future__ import annotations

import onnxruntime as ort
import pytest
from tuning import CPU, floats

import graphs
from ort_stacktune import SessionRecipe
from ort_stacktune.ort.options import ATTRIBUTES, CONFIG, ENUMS, RUN_CONFIG

# Legal, and refused all the same for a model like this one: another format, or a contradiction to the list
# of providers.
NEEDS_MORE = {
    ("ep.context_enable", "1"),
    ("session.disable_cpu_ep_fallback", "1"),
    ("session.load_model_format", "ORT"),
}


def test_every_attribute_and_enumeration_that_a_recipe_can_set_exists_in_this_onnx_runtime() -> None:
    options = ort.SessionOptions()
    for name in ATTRIBUTES:
        assert hasattr(options, name)
    for name, kind in ENUMS.items():
        members = ATTRIBUTES[name]
        assert isinstance(members, tuple)
        assert set(members) == set(getattr(ort, kind).__members__)
        for member in members:
            setattr(options, name, getattr(getattr(ort, kind), member))
            assert getattr(options, name).name == member


@pytest.mark.parametrize("key", [key for key, legal in CONFIG.items() if legal is not None])
def test_every_value_that_a_recipe_takes_for_a_known_key_makes_a_session_that_runs(key: str) -> None:
    legal = CONFIG[key]
    values = legal if isinstance(legal, tuple) else (str(legal.low), str(legal.high))  # type: ignore[union-attr]
    model = graphs.mlp().SerializeToString()
    for value in values:
        if (key, value) in NEEDS_MORE:
            continue
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 4
        options.add_session_config_entry(key, SessionRecipe("r", config={key: value}).config[key])
        session = ort.InferenceSession(model, options, providers=CPU)
        assert session.run(None, {"x": floats(1, 16)})[0].shape == (1, 16)


def test_run_config_entries_that_are_read_back_can_be_set() -> None:
    for key in RUN_CONFIG:
        options = ort.RunOptions()
        options.add_run_config_entry(key, "1")
        assert options.get_run_config_entry(key) == "1"
