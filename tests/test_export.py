"""A run's checkpoint as a Hugging Face folder."""

import json

import jax
import numpy as np
import pytest
from qwen3_reference import random_params
from torch_model import needs_torch, published

from metaagent_x import assemble, config, export
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.step import Learner
from metaagent_x.model import hf, qwen3
from metaagent_x.rollout.chat import Chat, train_bpe

MODEL = qwen3.Qwen3Config(
    vocab_size=300, hidden_size=16, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=32,
    tie_embeddings=False,
)  # fmt: skip
WEIGHTS = {"designer": random_params(MODEL, 1), "executor": random_params(MODEL, 2)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What a run leaves: two policies, steps 2 and 4; the Designer's weights have moved on by a known amount."""
    folder = tmp_path_factory.mktemp("run")
    train_bpe(["answer = solver()(task)"] * 5, 300, str(folder / "bpe"))
    learner = Learner(MODEL, config.base().learner)
    saved = Checkpoints(folder / "checkpoints", keep=2)
    for step in (2, 4):
        moved = WEIGHTS | {"designer": jax.tree.map(lambda x, step=step: x + step, WEIGHTS["designer"])}
        saved.save(step, {name: learner.init(params) for name, params in moved.items()}, {})
    saved.wait()
    assemble.describe(folder / "model", MODEL, str(folder / "bpe"))
    return folder


def main(run, to, *more):
    return export.main([f"--run={run}", f"--to={to}", *more])


@pytest.mark.fault("F118")
@pytest.mark.parametrize(("policy", "step", "moved"), [("designer", 2, 2), ("designer", None, 4), ("executor", 4, 0)])
def test_the_folder_holds_the_policy_of_that_step_and_its_tokenizer(run, policy, step, moved, tmp_path, capsys):
    """Loaded from the exported folder alone (huggingface/trl#6337)."""
    more = [f"--step={step}"] if step else []
    assert main(run, tmp_path / "hf", f"--policy={policy}", "--dtype=float32", *more) == 0
    assert f"policy '{policy}' of step {step or 4}, float32" in capsys.readouterr().out
    found, params = hf.load(tmp_path / "hf", "float32")
    assert found == MODEL
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y + moved), params, WEIGHTS[policy])
    before, after = Chat(str(run / "bpe")), Chat(str(tmp_path / "hf"))
    assert after.fingerprint == before.fingerprint and after.prompt("a", "b") == before.prompt("a", "b")
    defaults = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert defaults["eos_token_id"] == list(before.stop_ids) and defaults["pad_token_id"] == before.pad_id
    record = json.loads((tmp_path / "hf" / "export.json").read_text())
    assert record == {"run": str(run), "step": step or 4, "policy": policy, "dtype": "float32"}


@pytest.mark.slow
def test_a_later_export_replaces_the_earlier_one(run, tmp_path):
    assert main(run, tmp_path, "--policy=designer", "--dtype=float32") == 0
    assert main(run, tmp_path, "--policy=executor") == 0
    params = hf.load(tmp_path, "bfloat16")[1]
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y.astype("bfloat16")), params, WEIGHTS["executor"])
    assert json.loads((tmp_path / "export.json").read_text())["policy"] == "executor"


def test_what_cannot_be_exported_is_one_line_and_exit_code_2(run, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_text("precious")
    for flags, words in (
        ([run, tmp_path / "hf"], "trains designer and executor; choose one with --policy"),
        ([run, tmp_path / "hf", "--policy=shared"], "no policy 'shared'; it has designer, executor"),
        ([run, tmp_path / "hf", "--policy=designer", "--step=3"], r"no checkpoint of step 3; it has [2, 4]"),
        ([tmp_path, tmp_path / "hf"], "is no run with a checkpoint"),
        ([run, tmp_path / "mine", "--policy=designer"], "holds files that are no earlier export"),
    ):
        assert main(*flags) == 2
        said = capsys.readouterr().err
        assert words in said and said.startswith("bad input: ") and said.count("\n") == 1
    assert (tmp_path / "mine" / "model.safetensors").read_text() == "precious"
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(("failure", "code"), [(OSError("disk full"), 1), (KeyboardInterrupt(), 3)])
def test_a_failure_or_an_interruption_has_its_own_code_and_the_same_command_works_then(
    run, failure, code, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(hf, "save_file", fail)
        assert main(run, tmp_path / "hf", "--policy=designer") == code
    assert main(run, tmp_path / "hf", "--policy=designer") == 0


@needs_torch
@pytest.mark.slow
@pytest.mark.fault("F118")
def test_transformers_loads_model_and_tokenizer(run, tmp_path):
    import transformers

    assert main(run, tmp_path, "--policy=executor", "--dtype=float32") == 0
    model, info = published(tmp_path)
    assert not any(info.values()), info
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "solver() {1}\n2+2?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    chat = Chat(str(tmp_path))
    assert ids == chat.prompt("Be short.", "solver() {1}\n2+2?")
    assert model.generation_config.eos_token_id == list(chat.stop_ids)
