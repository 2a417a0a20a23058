import pytest

from models import MODELS, make_model


def test_unknown_name_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="name='resnet19' is unknown; choose from cnn, resnet18, haiku_cnn"):
        make_model("resnet19", num_classes=2)


@pytest.mark.parametrize("name", MODELS)
def test_unknown_argument_is_refused_with_the_choices(name):
    with pytest.raises(ValueError, match=f"{name}: there is no argument 'width_'; choose from .*norm"):
        make_model(name, num_classes=2, width_=3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("num_classes", 0, "at least 1"),
        ("num_classes", True, "at least 1"),
        ("norm", "layer", "group, batch"),
        ("norm", None, "group, batch"),
        ("dtype", "int8", "float32, bfloat16, float16"),
    ],
)
def test_wrong_values_are_refused_with_field_value_and_choices(name, field, value, says):
    with pytest.raises(ValueError, match=says) as error:
        make_model(name, **({"num_classes": 2} | {field: value}))
    assert f"{name}: {field}={value!r}" in str(error.value)


@pytest.mark.parametrize("name", ["cnn", "haiku_cnn"])
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("widths", (4, 0, 4), "at least 1"),
        ("widths", 4, "tuple"),
        ("strides", (1, 2), "one entry for each"),
        ("kernel_size", 1.5, "whole number"),
        ("pooling", "avg", "none, max, average"),
        ("readout", "sum", "flatten, mean"),
        ("dense_width", 0, "at least 1"),
        ("dropout_rate", 1.0, r"\[0, 1\)"),
        ("dropout_rate", float("nan"), r"\[0, 1\)"),
    ],
)
def test_wrong_cnn_arguments_are_refused(name, field, value, says):
    with pytest.raises(ValueError, match=says) as error:
        make_model(name, num_classes=2, **{field: value})
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [("stem", "7x7", "3x3, imagenet"), ("norm", "none", "group, batch"), ("width", 0, "1")],
)
def test_wrong_resnet_arguments_are_refused(field, value, says):
    with pytest.raises(ValueError, match=says) as error:
        make_model("resnet18", num_classes=2, **{field: value})
    assert f"resnet18: {field}={value!r}" in str(error.value)
