"""The routers of libraries, each as a function from logits to routes.

A rule yields, for one array of logits [tokens, experts], (kept, weights), both [tokens, experts];
weights may be None where the library returns none. `options` are those of 'moesim route' that ask
for the same. Nothing here is computed by moesim, and no rule of a library is written again: its own
code runs, with gates whose product returns the logits that are given.
"""
import importlib.metadata
from dataclasses import dataclass, field
from typing import Callable

import numpy
import torch


@dataclass
class Rule:
    name: str
    experts: int
    options: list
    run: Callable
    bias: object = None  # numpy [experts]: a given bias, handed to moesim as a file
    tokens: tuple = (96, 101)  # of a case; with and without a remainder


@dataclass
class Library:
    name: str
    package: str
    rules: Callable  # () -> [Rule]; an exception is the reason why it is skipped
    version: str = ""
    skipped: str = ""
    found: list = field(default_factory=list)

    def load(self):
        try:
            self.version = importlib.metadata.version(self.package)
            self.found = list(self.rules())
        except BaseException as error:  # a library may even exit where it finds no GPU
            self.skipped = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:90]}" if str(error) else repr(error)


def dense(indices, weights, experts):
    result = torch.zeros(indices.shape[0], experts, dtype=torch.float32)
    return result.scatter_(1, indices.long(), weights.float()).numpy()


def chosen(indices, experts):
    result = torch.zeros(indices.shape[0], experts, dtype=torch.bool)
    return result.scatter_(1, indices.long(), True).numpy()


class OneHot(torch.nn.Module):
    """An expert whose output is its own number, as a unit vector: a block returns its weights."""

    def __init__(self, expert, size):
        super().__init__()
        self.row = torch.zeros(size)
        self.row[expert] = 1

    def forward(self, hidden):
        return self.row.expand(hidden.shape[0], -1)


# transformers: whole blocks, or the module that routes.

def block_rule(name, block, config, experts, options):
    layer = block(config)
    with torch.no_grad():
        layer.gate.weight.copy_(torch.eye(experts))
    layer.experts = torch.nn.ModuleList([OneHot(expert, experts) for expert in range(experts)])
    layer.eval()

    def run(logits):
        out = layer(torch.from_numpy(logits)[None])
        weights = (out[0] if isinstance(out, tuple) else out).detach().reshape(-1, experts).numpy()
        return weights > 0, weights

    return Rule(name, experts, options, run)


def transformers_rules():
    from transformers import (DeepseekV2Config, DeepseekV3Config, Glm4MoeConfig, GptOssConfig, MixtralConfig,
                              NllbMoeConfig, OlmoeConfig, Qwen3MoeConfig, SwitchTransformersConfig)
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2MoEGate
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeTop2Router
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersTop1Router

    def dropless(k, weights):
        return ["--router", "dropless", "--top-k", str(k), "--weights", weights]

    for experts, k in ((8, 2), (16, 3)):
        yield block_rule("Mixtral", MixtralSparseMoeBlock, MixtralConfig(
            hidden_size=experts, intermediate_size=4, num_local_experts=experts, num_experts_per_tok=k),
            experts, dropless(k, "kept"))
    for normalised in (False, True):
        weights = "kept" if normalised else "raw"
        yield block_rule("OLMoE", OlmoeSparseMoeBlock, OlmoeConfig(
            hidden_size=64, intermediate_size=4, num_experts=64, num_experts_per_tok=8, norm_topk_prob=normalised),
            64, dropless(8, weights))
        yield block_rule("Qwen3-MoE", Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(
            hidden_size=128, moe_intermediate_size=4, num_experts=128, num_experts_per_tok=8,
            norm_topk_prob=normalised), 128, dropless(8, weights))

    def gate_rule(name, gate, config, experts, options, bias=None):
        module = gate(config)
        with torch.no_grad():
            module.weight.copy_(torch.eye(experts))
            if bias is not None:
                module.e_score_correction_bias.copy_(torch.from_numpy(bias))

        def run(logits):
            index, weight = module(torch.from_numpy(logits)[None])
            return chosen(index, experts), dense(index, weight.detach(), experts)

        return Rule(name, experts, options, run, bias)

    for groups, kept, k, experts, scale in ((8, 3, 6, 160, 16.0), (4, 2, 3, 16, 1.0), (2, 1, 1, 4, 1.0)):
        config = DeepseekV2Config(hidden_size=experts, n_routed_experts=experts, num_experts_per_tok=k, n_group=groups,
                                  topk_group=kept, topk_method="group_limited_greedy", routed_scaling_factor=scale,
                                  norm_topk_prob=False)
        yield gate_rule("DeepSeek-V2", DeepseekV2MoEGate, config, experts, [
            "--router", f"group-limited:{groups}:{kept}", "--top-k", str(k), "--weights", "raw",
            "--weight-scale", str(scale)])

    random = numpy.random.default_rng(3)
    # The model code puts 0, not -inf, in place of experts of other groups: biases are above 0.
    for groups, kept, k, experts in ((8, 4, 8, 256), (4, 2, 4, 16), (1, 1, 6, 64)):
        bias = random.uniform(0, 0.3, experts).astype(numpy.float32)
        name = f"bias-balanced:0:0+groups:{groups}:{kept}" if groups > 1 else "bias-balanced:0:0"
        options = ["--router", name, "--top-k", str(k), "--weights", "kept", "--weight-scale", "2.5"]
        shape = dict(hidden_size=experts, n_routed_experts=experts, num_experts_per_tok=k, n_group=groups,
                     topk_group=kept, routed_scaling_factor=2.5, norm_topk_prob=True)
        yield gate_rule("DeepSeek-V3", DeepseekV3TopkRouter, DeepseekV3Config(**shape), experts, options, bias)
        yield gate_rule("GLM-4.5", Glm4MoeTopkRouter, Glm4MoeConfig(**shape), experts, options, bias)

    gpt_oss = GptOssTopKRouter(GptOssConfig(hidden_size=32, num_local_experts=32, num_experts_per_tok=4))
    with torch.no_grad():
        gpt_oss.weight.copy_(torch.eye(32))
        gpt_oss.bias.zero_()

    def run_gpt_oss(logits):
        weights, index = gpt_oss(torch.from_numpy(logits))
        return chosen(index, 32), weights.detach().numpy()

    yield Rule("gpt-oss", 32, dropless(4, "kept"), run_gpt_oss)

    for capacity in (4, 12, 64):
        switch = SwitchTransformersTop1Router(SwitchTransformersConfig(
            hidden_size=8, num_experts=8, expert_capacity=capacity, router_bias=False, router_dtype="float32")).eval()
        with torch.no_grad():
            switch.classifier.weight.copy_(torch.eye(8))

        def run_switch(logits, module=switch):
            index, probability, _ = module(torch.from_numpy(logits)[None])
            kept = index[0].bool().numpy()
            return kept, probability[0].detach().numpy() * kept

        yield Rule("Switch Transformers", 8, ["--router", "top1", "--router-dialect", "switch", "--min-capacity",
                                              str(capacity), "--capacity-factor", "0.000001"], run_switch)
        for before in (False, True):
            for prioritised in (False, True):
                nllb = NllbMoeTop2Router(NllbMoeConfig(
                    hidden_size=8, num_experts=8, expert_capacity=capacity, router_bias=False,
                    router_dtype="float32", second_expert_policy="all",
                    normalize_router_prob_before_dropping=before, batch_prioritized_routing=prioritised,
                    moe_eval_capacity_token_fraction=-1)).eval()

                def run_nllb(logits, module=nllb):
                    with torch.no_grad():
                        module.classifier.weight.copy_(torch.eye(8))
                        weights = module(torch.from_numpy(logits)[None])[1].numpy()
                    return weights > 0, weights

                yield Rule("NLLB-MoE", 8, ["--router", "top2", "--min-capacity", str(capacity), "--capacity-factor",
                                           "0.000001", "--priority", "token-max" if prioritised else "position",
                                           "--weights", "before-drop" if before else "kept"], run_nllb)


# DeepSpeed and fairscale: the gating functions, which return [S, E, C].

def of_slots(combine):
    weights = combine.sum(dim=2).detach().numpy()
    return weights > 0, weights


def deepspeed_rules():
    from deepspeed.moe import sharded_moe
    from deepspeed.moe.sharded_moe import top1gating, top2gating, topkgating

    # Random token selection keeps the largest of random keys; here these fall with the token. Without it the library
    # asks torch.topk for the largest of equal keys: any of them.
    def falling_keys(shape):
        return torch.linspace(1, 0.5, shape[0])[:, None].expand(shape)

    sharded_moe.exp_selection_uniform_map[torch.device("cpu")] = falling_keys
    for factor in (0.5, 1.0, 1.25, 2.2):
        text = ["--router-dialect", "deepspeed", "--capacity-factor", str(factor)]
        yield Rule("top1gating, random keys in the order of tokens", 8,
                   ["--router", "top1", "--priority", "position", *text],
                   lambda x, factor=factor: of_slots(top1gating(torch.from_numpy(x), factor, 4)[1]))
        yield Rule("top2gating, no sampling", 8, ["--router", "top2", "--second-expert", "best", *text],
                   lambda x, factor=factor: of_slots(
                       top2gating(torch.from_numpy(x), factor, 4, top2_2nd_expert_sampling=False)[1]))
        for k in (3, 4):
            for policy, priority in (("probs", "own-score"), ("position", "token-order")):
                yield Rule(f"topkgating, {policy}", 16, ["--router", f"top{k}", "--priority", priority, *text],
                           lambda x, factor=factor, k=k, policy=policy: of_slots(
                               topkgating(torch.from_numpy(x), k, factor, 4, drop_policy=policy)[1]))
    yield Rule("top1gating, drop_tokens off", 8, ["--router", "top1", "--router-dialect", "deepspeed", "--padding",
                                                 "busiest"],
               lambda x: of_slots(top1gating(torch.from_numpy(x), 1.0, 4, drop_tokens=False, use_rts=False)[1]))


def fairscale_rules():
    from fairscale.nn.moe import top2gate
    top2gate.gumbel_rsample = lambda shape, device: torch.zeros(shape)  # without sampling
    yield Rule("top2gating, no sampling", 8, ["--router", "top2", "--priority", "position", "--capacity-factor", "2"],
               lambda x: of_slots(top2gate.top2gating(torch.from_numpy(x))[1]), tokens=(96, 128))


# Megatron-Core: the functions of moe_utils.

def megatron_rules():
    from megatron.core.transformer.moe import moe_utils

    def run(logits, k, factor=None, policy="probs", **how):
        x = torch.from_numpy(logits)
        probabilities, routing = moe_utils.topk_routing_with_score_function(x, k, **how)
        if factor is not None:
            capacity_arguments = dict(router_topk=k, capacity_factor=factor, drop_policy=policy)
            probabilities, routing = moe_utils.apply_router_token_dropping(probabilities, routing, **capacity_arguments)
        return routing.bool().numpy(), probabilities.float().numpy()

    for k in (2, 6):
        yield Rule("softmax after the choice", 16, ["--router", f"top{k}", "--router-dialect", "megatron",
                                                    "--capacity-factor", "100"],
                   lambda x, k=k: run(x, k, use_pre_softmax=False))
        yield Rule("softmax before the choice", 16, ["--router", "dropless", "--top-k", str(k), "--weights", "raw"],
                   lambda x, k=k: run(x, k, use_pre_softmax=True))
        yield Rule("sigmoid", 16, ["--router", "dropless", "--top-k", str(k), "--score-function", "sigmoid"],
                   lambda x, k=k: run(x, k, score_function="sigmoid"))
        for factor in (0.5, 1.0, 1.1):
            yield Rule("dropping by probs", 16, ["--router", f"top{k}", "--router-dialect", "megatron",
                                                 "--capacity-factor", str(factor)],
                       lambda x, k=k, factor=factor: run(x, k, factor))
            yield Rule("dropping by probs, sigmoid", 16, [
                "--router", f"top{k}", "--router-dialect", "megatron", "--score-function", "sigmoid",
                "--capacity-factor", str(factor)],
                lambda x, k=k, factor=factor: run(x, k, factor, score_function="sigmoid"))
    random = numpy.random.default_rng(4)
    for groups, kept, k, experts in ((2, 1, 2, 4), (4, 2, 4, 16), (8, 4, 8, 64)):
        group = dict(num_groups=groups, group_topk=kept)
        yield Rule("groups by logits", experts, ["--router", f"group-limited:{groups}:{kept}", "--top-k", str(k),
                                                 "--router-dialect", "megatron"],
                   lambda x, k=k, group=group: run(x, k, **group))
        yield Rule("groups before the choice", experts, [
            "--router", f"group-limited:{groups}:{kept}", "--top-k", str(k), "--group-score", "topk", "--weights",
            "raw"], lambda x, k=k, group=group: run(x, k, use_pre_softmax=True, **group))
        bias = random.uniform(-0.2, 0.2, experts).astype(numpy.float32)
        yield Rule("groups by sigmoid and bias", experts, [
            "--router", f"bias-balanced:0:0+groups:{groups}:{kept}", "--top-k", str(k), "--router-dialect",
            "megatron", "--weight-scale", "2.5"],
            lambda x, k=k, group=group, bias=bias: run(x, k, score_function="sigmoid", scaling_factor=2.5,
                                                       expert_bias=torch.from_numpy(bias), **group), bias)

    def balanced(logits, k):
        x = torch.from_numpy(logits)
        index = torch.topk(moe_utils.sinkhorn(x), k=k, dim=1)[1]
        scores = torch.sigmoid(x) if k == 1 else torch.softmax(x, dim=-1)
        return chosen(index, x.shape[1]), dense(index, scores.gather(1, index), x.shape[1])

    for k in (1, 2):
        yield Rule("sinkhorn", 16, ["--router", "sinkhorn", "--top-k", str(k)], lambda x, k=k: balanced(x, k))


def tutel_rules():
    from tutel.impls.fast_dispatch import extract_critical

    def run(logits, k, factor, prioritised):
        scores = torch.softmax(torch.from_numpy(logits), dim=1)
        critical, _ = extract_critical(scores, k, lambda *_: torch.tensor(0.0), factor,
                                       batch_prioritized_routing=prioritised)
        experts, indices, locations, gates, capacity = critical[:5]
        weights = torch.zeros_like(scores)
        for index, location, gate in zip(indices, locations, gates):
            on = (location < capacity).float() * gate
            weights.scatter_add_(1, index.long()[:, None], on[:, None])
        return weights.numpy() > 0, weights.numpy()

    for k in (1, 2, 3):
        for factor in (0.5, 1.0, 1.25):
            for prioritised in (False, True):
                yield Rule("extract_critical" + (", prioritised" if prioritised else ""), 8, [
                    "--router", f"top{k}", "--router-dialect", "tutel", "--capacity-factor", str(factor),
                    "--priority", "token-max" if prioritised else "position"],
                    lambda x, k=k, factor=factor, prioritised=prioritised: run(x, k, factor, prioritised))


def megablocks_rules():
    import megablocks.layers.moe  # its kernels are CUDA
    raise RuntimeError(f"{megablocks.layers.moe.__name__} imports; its kernels need a GPU")


def libraries():
    return [Library("transformers", "transformers", transformers_rules),
            Library("DeepSpeed", "deepspeed", deepspeed_rules),
            Library("Megatron-Core", "megatron-core", megatron_rules),
            Library("fairscale", "fairscale", fairscale_rules),
            Library("Tutel", "tutel", tutel_rules),
            Library("MegaBlocks", "megablocks", megablocks_rules)]
