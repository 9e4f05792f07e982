"""What ops do with the samples of a batch: rules agree with trials, and trials find mixing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from purine.analysis import sample_rules as _sample_rules
from purine.analysis.samples import ANY, EVERY, MEAN, SAME, SUM, Relation, Samples, try_out
from purine.graph import Attribute, Blob, Op
from purine.registry.facts import SampleRule
from purine.registry.kind import kind

X = Samples(0)
ROWS = Samples(0, inner=5)  # samples joined with places
LATER = Samples(1)


def blobs(*forms: tuple[int, ...] | str) -> list[Blob]:
    """Blobs of shapes; a text such as `int64 4` gives the dtype too."""
    made = []
    for number, form in enumerate(forms):
        dtype = "float32"
        if isinstance(form, str):
            dtype, *sizes = form.split()
            form = tuple(map(int, sizes))
        made.append(Blob(f"x{number}", form, dtype))
    return made


def op_of(name: str, inputs: list[Blob], results: int, attributes: dict[str, Attribute]) -> Op:
    outputs = tuple(f"y{number}" for number in range(results))
    return Op("op", name, tuple(blob.name for blob in inputs), outputs, attributes)


# Every rule: kind, inputs, their relations, attributes, and what results have in common.
RULES: list[tuple[str, list[Blob], list[Relation], dict[str, Attribute], Relation]] = [
    ("Conv", blobs((4, 3, 6, 6), (2, 3, 3, 3), (2,)), [X, SAME, SAME], {}, X),
    ("Deconv", blobs((4, 3, 6, 6), (3, 2, 3, 3), (2,)), [X, SAME, SAME], {}, X),
    ("InnerProduct", blobs((4, 3, 6), (2, 18), (2,)), [X, SAME, SAME], {}, X),
    ("InnerProduct", blobs((20, 6), (2, 6), (2,)), [ROWS, SAME, SAME], {}, ROWS),
    ("Pool", blobs((4, 3, 6, 6)), [X], {"kernel": 2, "stride": 2}, X),
    ("GlobalPool", blobs((4, 3, 6, 6)), [X], {}, X),
    ("Relu", blobs((4, 3)), [X], {}, X),
    ("Eltwise", blobs((4, 3), (4, 3)), [X, X], {}, X),
    ("Softmax", blobs((4, 3)), [X], {}, X),
    ("LRN", blobs((4, 6, 3, 3)), [X], {}, X),
    ("MVN", blobs((4, 6, 3, 3)), [X], {}, X),
    ("Scale", blobs((4, 6, 3, 3), (6,)), [X, SAME], {}, X),
    ("Bias", blobs((4, 6, 3, 3), (6,)), [X, SAME], {}, X),
    ("PRelu", blobs((4, 6, 3, 3), (6,)), [X, SAME], {}, X),
    ("Attention", blobs((4, 2, 5, 8), (4, 2, 5, 8), (4, 2, 5, 8)), [X, X, X], {}, X),
    ("BatchNormTest", blobs((4, 3, 2, 2), *[(3,)] * 4), [X, *[SAME] * 4], {}, X),
    ("LayerNorm", blobs((4, 5, 6), (6,), (6,)), [X, SAME, SAME], {"shape": (6,)}, X),
    ("Embedding", blobs("int64 4 5", (7, 6)), [X, SAME], {}, X),
    ("Flatten", blobs((4, 5, 6)), [X], {}, X),
    ("Reshape", blobs((4, 5, 6)), [X], {"shape": (0, 30)}, X),
    ("Transpose", blobs((4, 5, 6)), [X], {"axes": (1, 0, 2)}, LATER),
    ("Prepend", blobs((4, 5, 6), (1, 6)), [X, SAME], {}, X),
    ("Concat", blobs((4, 5), (4, 6)), [X, X], {}, X),
    ("Slice", blobs((4, 5)), [X], {"start": 1}, X),
    ("Normalize", blobs("uint8 4 3 2 2"), [X], {"scale": 0.5}, X),
    ("SoftmaxLoss", blobs((4, 5), "int64 4"), [X, X], {}, MEAN),
    ("SoftmaxLoss", blobs((4, 5), "int64 4"), [X, X], {"normalization": "none"}, SUM),
    ("Accuracy", blobs((4, 5), "int64 4"), [X, X], {}, MEAN),
    ("Accuracy", blobs((4, 5), "int64 4"), [X, X], {"normalization": "none"}, SUM),
    ("aten.add.Tensor", blobs((4, 3), (3,)), [X, SAME], {}, X),
    ("aten.add.Tensor", blobs((5, 4, 3), (4, 3)), [LATER, X], {}, LATER),
    ("aten.where.self", blobs("bool 4 3", (4, 3), ()), [X, X, SAME], {}, X),
    ("aten.linear", blobs((4, 5, 6), (7, 6), (7,)), [X, SAME, SAME], {}, X),
    ("aten.mm", blobs((20, 6), (6, 7)), [ROWS, SAME], {}, ROWS),
    ("aten.mm", blobs((7, 6), (6, 4)), [SAME, LATER], {}, LATER),
    ("aten.addmm", blobs((7,), (4, 6), (6, 7)), [SAME, X, SAME], {}, X),
    ("aten.bmm", blobs((4, 5, 6), (4, 6, 7)), [X, X], {}, X),
    ("aten.matmul", blobs((4, 2, 5, 6), (4, 2, 6, 7)), [X, X], {}, X),
    ("aten.matmul", blobs((5, 4, 6), (6, 7)), [LATER, SAME], {}, LATER),
    ("aten.conv2d", blobs((4, 3, 6, 6), (2, 3, 3, 3)), [X, SAME], {}, X),
    ("aten.embedding", blobs((7, 6), "int64 4 5"), [SAME, X], {}, X),
    ("aten.layer_norm", blobs((5, 4, 6)), [LATER], {"normalized_shape": (6,)}, LATER),
    ("aten.group_norm", blobs((4, 6, 3)), [X], {"num_groups": 2}, X),
    ("aten.softmax.int", blobs((4, 5)), [X], {"dim": 1}, X),
    ("aten.cumsum", blobs((4, 5)), [X], {"dim": 1}, X),
    ("aten.sum", blobs((4, 5)), [X], {}, SUM),
    ("aten.sum.dim_IntList", blobs((4, 5)), [X], {"dim": (0,)}, SUM),
    ("aten.sum.dim_IntList", blobs((3, 4, 5)), [LATER], {"dim": (0,)}, X),
    ("aten.mean", blobs((4, 5)), [X], {}, MEAN),
    ("aten.mean.dim", blobs((20, 5)), [ROWS], {"dim": (0,), "keepdim": True}, MEAN),
    ("aten.amax", blobs((4, 5)), [X], {"dim": (1,)}, X),
    ("aten.cat", blobs((4, 5), (4, 6)), [X, X], {"dim": 1}, X),
    ("aten.slice.Tensor", blobs((4, 5)), [X], {"dim": 1, "end": 3}, X),
    ("aten.select.int", blobs((3, 4, 5)), [LATER], {"dim": 0, "index": 1}, X),
    ("aten.permute", blobs((4, 5, 6)), [X], {"dims": (1, 0, 2)}, LATER),
    ("aten.transpose.int", blobs((4, 5, 6)), [X], {"dim0": 1, "dim1": 0}, LATER),
    ("aten.t", blobs((4, 5)), [X], {}, LATER),
    ("aten.reshape", blobs((4, 5, 6)), [X], {"shape": (-1, 6)}, ROWS),
    ("aten.reshape", blobs((20, 6)), [ROWS], {"shape": (-1, 5, 6)}, X),
    ("aten.reshape", blobs((5, 4, 6)), [LATER], {"shape": (-1, 6)}, Samples(0, outer=5)),
    ("aten.cross_entropy_loss", blobs((4, 5), "int64 4"), [X, X], {"reduction": 2}, SUM),
    (
        "aten.scaled_dot_product_attention",
        blobs(*[(4, 2, 5, 8)] * 3),
        [X, X, X],
        {"is_causal": True},
        X,
    ),
]


@pytest.mark.parametrize(("name", "inputs", "given", "attributes", "expected"), RULES)
def test_a_rule_says_what_a_trial_finds(
    name: str,
    inputs: list[Blob],
    given: list[Relation],
    attributes: dict[str, Attribute],
    expected: Relation,
) -> None:
    op = op_of(name, inputs, 1, attributes)
    shapes = [blob.shape or () for blob in inputs]
    assert _sample_rules._by_rule(op, shapes, given) == expected
    assert try_out(op, inputs, given, 1) == (expected,)


def test_every_class_of_facts_has_a_rule() -> None:
    assert {*SampleRule} == {*_sample_rules._RULES, SampleRule.BATCH_NORM}


@pytest.mark.parametrize(
    ("name", "inputs", "given", "attributes"),
    [
        ("aten.softmax.int", blobs((4, 5)), [X], {"dim": 0}),
        ("aten.matmul", blobs((4, 5), (5, 4)), [X, LATER], {}),
        ("aten.sub.Tensor", blobs((4, 1), (1, 4)), [X, LATER], {}),
        ("aten.logsumexp", blobs((4, 5)), [X], {"dim": (0,)}),
        ("aten.amax", blobs((4, 5)), [X], {}),
        ("aten.cumsum", blobs((4, 5)), [X], {"dim": 0}),
        ("aten.flip", blobs((4, 5)), [X], {"dims": (0,)}),
        ("aten.var.correction", blobs((4, 5)), [X], {"dim": (0,)}),
        ("aten.index_select", blobs((4, 5), "int64 4"), [X, X], {"dim": 0}),
        ("aten.sqrt", blobs(()), [MEAN], {}),
        ("aten.mul.Tensor", blobs((), ()), [SUM, SUM], {}),
        ("Reshape", blobs((4, 6)), [X], {"shape": (2, -1)}),
        # Not the rows, but their gradients depend on the batch.
        ("aten.embedding", blobs((7, 6), "int64 4"), [SAME, X], {"scale_grad_by_freq": True}),
    ],
)
def test_an_op_that_mixes_samples_is_found(
    name: str, inputs: list[Blob], given: list[Relation], attributes: dict[str, Attribute]
) -> None:
    relations = dict(zip((blob.name for blob in inputs), given, strict=True))
    op = op_of(name, inputs, 1, attributes)
    assert _sample_rules.relate(op, {blob.name: blob for blob in inputs}, relations) is None


def test_conditions_on_all_samples_are_kept_by_parts() -> None:
    """A loss that is not a number where values are not finite is so where those of a part are."""

    def found(name: str, *inputs: tuple[Blob, Relation]) -> Relation:
        forms = {f"x{k}": replace(blob, name=f"x{k}") for k, (blob, _) in enumerate(inputs)}
        op = Op("op", name, tuple(forms), ("y",), {"expected": "z"} if name == "Expect" else {})
        given = dict(zip(forms, (relation for _, relation in inputs), strict=True))
        (relation,) = _sample_rules.relate(op, forms, given) or (None,)
        assert relation is not None
        return relation

    samples, flag, loss = blobs("bool 4 3", "bool", ())
    every, some = found("aten.all", (samples, X)), found("aten.any", (samples, X))
    assert (every, some) == (EVERY, ANY)
    assert found("aten.logical_not", (flag, some)) is EVERY
    assert found("Expect", (loss, MEAN), (flag, every)) is MEAN
    op = op_of("Expect", [loss, replace(flag, name="x1")], 1, {"expected": "z"})
    mixed = {"x2": MEAN, "x1": ANY}
    assert _sample_rules.relate(op, {"x2": loss, "x1": replace(flag, name="x1")}, mixed) is None


def test_random_numbers_are_drawn_by_sample_or_by_all_parts() -> None:
    def found(name: str, shape: tuple[Attribute, ...], **settings: Attribute) -> object:
        inputs = [Blob("seed", (), "int64"), Blob("iteration", (), "int64")]
        if name.startswith("sized."):
            inputs.insert(0, Blob("data", (4, 3)))
        attributes = {"shape": shape, "stream": "s", **settings}
        op = op_of(name, inputs, 1, attributes)
        given = {blob.name: X if blob.name == "data" else SAME for blob in inputs}
        return _sample_rules.relate(op, {blob.name: blob for blob in inputs}, given)

    assert found("sized.RandomNormal", ("batch", 3)) == (X,)
    assert found("sized.RandomNormal", ("5*batch", 3)) == (ROWS,)
    assert found("RandomNormal", (4, 3), shared=True) == (SAME,)
    assert found("RandomNormal", (4, 3)) is None


def test_sums_and_means_pass_linear_ops() -> None:
    scalars = blobs((), ())
    assert try_out(op_of("aten.add.Tensor", scalars, 1, {}), scalars, [MEAN, SAME], 1) == (MEAN,)
    assert try_out(op_of("aten.div.Tensor", scalars, 1, {}), scalars, [SUM, SAME], 1) == (SUM,)
    halved = op_of("sized.aten.div.Tensor", blobs((), (4, 3)), 1, {"other": "batch"})
    assert try_out(halved, blobs((), (4, 3)), [SUM, X], 1) == (MEAN,)


def test_numbers_of_samples_pick_rows_and_nothing_else() -> None:
    counted = op_of("sized.aten.arange", blobs((4, 3)), 1, {"end": "batch"})
    (numbers,) = try_out(counted, blobs((4, 3)), [X], 1) or ()
    assert numbers == Samples(0, numbers=True)
    inputs = blobs((4, 5, 6), "int64 4", "int64 4")
    picked = op_of("aten.index.Tensor", inputs, 1, {"indices": ("$1", "$2")})
    assert try_out(picked, inputs, [X, numbers, X], 1) == (X,)
    added = op_of("aten.add.Scalar", blobs("int64 4"), 1, {"other": 1})
    assert try_out(added, blobs("int64 4"), [numbers], 1) is None


def test_a_kind_that_leaves_out_labels_is_not_taken_for_a_mean() -> None:
    """A trial meets the labels that are commonly ignored, and those that attributes name."""

    @kind
    def MaskedMeanForTest(x: Tensor, label: Tensor, *, ignored: int = -1) -> Tensor:
        counts = label != ignored
        return (x * counts).sum() / counts.sum().clamp(min=1)

    for attributes in ({}, {"ignored": 7}):
        inputs = blobs((4,), "int64 4")
        assert try_out(op_of("MaskedMeanForTest", inputs, 1, attributes), inputs, [X, X], 1) is None


def test_a_trial_leaves_torchs_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    try_out(op_of("aten.flip", blobs((4, 5)), 1, {"dims": (1,)}), blobs((4, 5)), [X], 1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_values_without_elements_have_samples_too() -> None:
    inputs = blobs((4, 0), (4, 0))
    added = op_of("aten.hypot", inputs, 1, {})
    assert try_out(added, inputs, [X, X], 1) == (X,)
