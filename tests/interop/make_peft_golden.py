#!/usr/bin/env python3
"""Writes the golden adapters of tests/io/peft_test.cpp. For each adapter below, it writes a PEFT folder with random weights for one
of the models in tests/io/pretrained, and expected.safetensors with the results of peft in f32.
  It contains tokens [2, L], logits [2, L, V], loss, and grad.NAME for every tensor of the adapter.

  make_peft_golden.py [NAME ...]   needs torch, transformers, peft, safetensors (made with peft 0.21.2)
  make_peft_golden.py --check      only checks that the installed peft computes the same from the folders"""
import pathlib
import shutil
import sys

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MODELS = pathlib.Path(__file__).parent.parent / "io" / "pretrained"
FOLDERS = pathlib.Path(__file__).parent.parent / "io" / "adapters"
LENGTH = 14

# name: (model, settings of the adapter, dtype of its file)
ADAPTERS = {
    "gpt2": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True,
                          rank_pattern={"mlp.c_proj": 2}, alpha_pattern={"attn.c_proj": 5}), "float32"),
    "llama": ("llama", dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.1), "float32"),
    # this adapter's file also contains the head's weight
    "llama_head": ("llama", dict(r=2, lora_alpha=3, target_modules=["lm_head", "q_proj"]), "float32"),
    "phi3": ("phi3", dict(r=3, lora_alpha=4, target_modules="all-linear", use_rslora=True,
                          rank_pattern={"^model.layers.1.self_attn.qkv_proj": 5}), "float32"),
    "qwen2": ("qwen2", dict(r=2, lora_alpha=3, target_modules=r".*layers\.1\..*(q|down)_proj"), "bfloat16"),
    "gemma2": ("gemma2", dict(r=2, lora_alpha=3, target_modules=["o_proj", "up_proj"], layers_to_transform=[1]),
               "float32"),
    "deepseek_v3": ("deepseek_v3", dict(r=2, lora_alpha=2.5, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
                                                                        "kv_b_proj", "o_proj"]), "float32"),
}


def opened(model):
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / model, dtype=torch.float32,
                                                              attn_implementation="eager")
    return model.eval()


def plain_name(name):
    return name.replace(".default.", ".")


def expected_of(model, tokens):
    for name, p in model.named_parameters():
        p.requires_grad_(".lora_" in name)
    out = model(tokens, labels=tokens)
    out.loss.backward()
    tensors = {"grad." + plain_name(name): p.grad.contiguous() for name, p in model.named_parameters()
               if ".lora_" in name}
    tensors.update(tokens=tokens.int(), logits=out.logits.detach(), loss=out.loss.detach())
    return tensors


def write(name):
    base, settings, dtype = ADAPTERS[name]
    folder = FOLDERS / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(1)
    config = peft.LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=f"tests/io/pretrained/{base}", **settings)
    model = peft.get_peft_model(opened(base), config).eval()
    model.peft_config["default"].base_model_name_or_path = f"tests/io/pretrained/{base}"
    with torch.no_grad():
        for n, p in model.named_parameters():
            if ".lora_" in n:
                p.copy_((0.2 * torch.randn(p.shape)).to(getattr(torch, dtype)).float())
    expected = expected_of(model, torch.randint(0, 37, (2, LENGTH)))
    for n, p in model.named_parameters():
        if ".lora_" in n:
            p.data = p.data.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    save_file(expected, folder / "expected.safetensors")


def check(name):
    folder = FOLDERS / name
    expected = load_file(folder / "expected.safetensors")
    model = peft.PeftModel.from_pretrained(opened(ADAPTERS[name][0]), folder, is_trainable=True).eval()
    got = expected_of(model, expected["tokens"].long())
    worst = 0.0
    for key, value in expected.items():
        error = (got[key].float() - value.float()).abs().max().item() / max(1.0, value.float().abs().max().item())
        worst = max(worst, error)
    print(f"{name:16} {worst:.1e}")
    return worst < 1e-5


def main(arguments):
    if arguments == ["--check"]:
        return 0 if all([check(name) for name in ADAPTERS]) else 1
    for name in arguments or ADAPTERS:
        write(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
