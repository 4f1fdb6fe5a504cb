"""Curves on disk: found again, refused where they do not fit, and never the reason that a load
fails.
"""

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import draftwood
from draftwood import methods
from draftwood.costs import calibration, disturbance
from draftwood.costs.calibration import (
    Calibration,
    CalibrationWarning,
    Key,
    KnownCurve,
    curve_for,
    known_speed_ups,
    read,
    store,
)
from draftwood.costs.curve import Curve, measure
from draftwood.costs.following import Following
from draftwood.models.native import NativeModel
from draftwood.sampling import PassTime
from draftwood.storage.home import home
from draftwood.testing import tiny_llama
from draftwood_torch.lean.graphs import Graphs
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel

SAW = Following.saw
CURVE = Curve((1, 4, 16), (0.01, 0.0125, 0.02))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty DRAFTWOOD_HOME that curves are really stored in."""
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration, "home", home)
    return tmp_path / "home"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds allowed for each curve measured; nothing is really run."""
    allowed: list[float] = []

    def measure(model: object, seconds: float, **more: object) -> Curve:
        allowed.append(seconds)
        return CURVE

    monkeypatch.setattr(calibration, "measure", measure)
    return allowed


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return TransformersModel(tiny_llama())


def words() -> PreTrainedTokenizerFast:
    vocabulary = {f"w{number}": number for number in range(8)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, "w0")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny model"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"weights")
    return made


@pytest.fixture
def key(model: TransformersModel, folder: Path) -> Key:
    return Key.of(model, folder, "float32")


def test_what_is_stored_is_found_again(key: Key, own_home: Path) -> None:
    path = store(key, CURVE, "draftwood tune", {"lookup": 0.0001})
    assert path == key.path
    assert path.parent == own_home / "curves"
    assert path.name.startswith("tiny-model-float32-1-threads-")
    assert read(key) == KnownCurve(CURVE)


def test_people_can_read_the_file(key: Key) -> None:
    record = json.loads(store(key, CURVE, "draftwood tune", {"lookup": 0.0001}).read_text())
    assert record["seconds_by_nodes"] == {"1": 0.01, "4": 0.0125, "16": 0.02}
    assert record["measured_by"] == "draftwood tune"
    assert record["measured_for"]["threads"] == 1
    assert record["measured_for"]["dtype"] == "float32"
    assert f"torch {torch.__version__.split('+')[0]}" in record["measured_for"]["versions"]
    assert record["processor"]
    assert record["date"].startswith("20")
    assert record["draft_seconds_per_step"] == {"lookup": 0.0001}


def test_nothing_stored_is_no_file(key: Key) -> None:
    with pytest.raises(FileNotFoundError):
        read(key)


@pytest.mark.parametrize("part", ["model", "dtype", "runner", "device"])
def test_each_machine_model_and_dtype_has_its_own_curve(key: Key, part: str) -> None:
    other = replace(key, **{part: f"another {part}"})
    store(other, Curve((1,), (1.0,)), "draftwood tune")
    store(key, CURVE, "draftwood tune")
    assert other.path != key.path
    assert read(other).curve.seconds == (1.0,)
    assert read(key) == KnownCurve(CURVE)


def test_each_number_of_threads_has_its_own_curve(key: Key) -> None:
    assert replace(key, threads=2).path != key.path


@pytest.mark.parametrize(
    "part", ["model", "dtype", "runner", "device", "threads", "weights", "versions"]
)
def test_a_curve_of_something_else_is_refused_with_both_names(key: Key, part: str) -> None:
    wanted = "another thing" if part != "threads" else 64
    text = store(key, CURVE, "draftwood tune").read_text()
    other = replace(key, **{part: wanted})
    other.path.write_text(text)  # as if copied from the other machine
    with pytest.raises(ValueError, match=f"measured for {part} .*, this is {wanted!r}"):
        read(other)


def test_weights_that_changed_need_another_curve(
    model: TransformersModel, folder: Path, key: Key
) -> None:
    store(key, CURVE, "draftwood tune")
    (folder / "model.safetensors").write_bytes(b"other weights")
    changed = Key.of(model, folder, "float32")
    assert changed.path == key.path
    with pytest.raises(
        ValueError, match=r"measured for weights '7 bytes of .*, this is '13 bytes of "
    ):
        read(changed)
    os.utime(folder / "model.safetensors", (1, 1))
    assert Key.of(model, folder, "float32") != changed


def test_the_key_names_how_the_model_runs(model: TransformersModel, folder: Path) -> None:
    assert Key.of(model, folder, "float32").runner == "TransformersModel"
    lean = LeanModel(tiny_llama())
    assert Key.of(lean, folder, "float32").runner == "LeanModel"
    lean.graphs = Graphs(lambda work: work)
    assert Key.of(lean, folder, "float32").runner == "LeanModel, recorded as graphs"
    native = NativeModel(tiny_llama(), "bfloat16")
    assert Key.of(native, folder, "float32").runner.startswith(
        "NativeModel, bfloat16 products, library "
    )


def test_pytorch_s_version_is_named_where_it_runs_the_passes(folder: Path) -> None:
    hf_model = tiny_llama(0)
    lean, native = (Key.of(each(hf_model), folder, "float32") for each in (LeanModel, NativeModel))
    assert "torch" in lean.versions
    assert native.versions == f"draftwood {draftwood.__version__}"


def test_a_folder_of_the_hugging_face_cache_is_named_after_its_model(
    model: TransformersModel, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    assert Key.of(model, snapshot, "bfloat16").path.name.startswith("org--name-bfloat16-1-threads-")


# ---- damaged files


def _without(name: str) -> Callable[[dict], object]:
    return lambda record: {part: value for part, value in record.items() if part != name}


DAMAGE: dict[str, Callable[[dict], object]] = {
    "'seconds_by_nodes' is missing": _without("seconds_by_nodes"),
    "'measured_for' is missing": _without("measured_for"),
    "from 1 on": lambda record: {**record, "seconds_by_nodes": {}},
    "above 0": lambda record: {**record, "seconds_by_nodes": {"1": -1.0}},
    "never fall": lambda record: {**record, "seconds_by_nodes": {"1": 2.0, "2": 1.0}},
    "invalid literal": lambda record: {**record, "seconds_by_nodes": {"one": 2.0}},
    "could not convert": lambda record: {**record, "seconds_by_nodes": {"1": "fast"}},
    "no attribute": lambda record: {**record, "seconds_by_nodes": [1.0]},
    "float.* not 'NoneType'": lambda record: {**record, "seconds_by_nodes": {"1": None}},
    "indices": lambda record: [record],
    "not iterable": lambda record: {**record, "measured_for": 3},
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_record_is_named_with_the_reason(key: Key, reason: str) -> None:
    path = store(key, CURVE, "draftwood tune")
    path.write_text(json.dumps(DAMAGE[reason](json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=f"the curve in .*{path.name} is damaged: .*{reason}"):
        read(key)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"NaN", b'{"measured_for": {}}']
)
def test_a_damaged_file_is_measured_anew_with_one_warning(
    key: Key, model: TransformersModel, measured: list[float], content: bytes
) -> None:
    store(key, CURVE, "draftwood tune").write_bytes(content)
    with pytest.warns(CalibrationWarning, match="is damaged: .*it is measured again") as said:
        assert curve_for(model, key) == KnownCurve(CURVE)
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert read(key) == KnownCurve(CURVE)
    assert measured == [3.0]


def test_half_a_file_is_damaged(key: Key) -> None:
    path = store(key, CURVE, "draftwood tune")
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match="damaged"):
        read(key)


# ---- loads


def test_a_first_look_measures_and_stores_and_later_ones_read(
    key: Key, model: TransformersModel, measured: list[float]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert curve_for(model, key) == KnownCurve(CURVE)
        assert curve_for(model, key) == KnownCurve(CURVE)
    assert measured == [3.0]
    assert json.loads(key.path.read_text())["measured_by"] == "draftwood.load"


def test_a_curve_of_other_hardware_is_replaced_with_one_warning(
    key: Key, model: TransformersModel, measured: list[float]
) -> None:
    store(key, Curve((1,), (1.0,)), "draftwood tune")
    record = json.loads(key.path.read_text())
    record["measured_for"]["device"] = "A Faster CPU"
    key.path.write_text(json.dumps(record))
    with pytest.warns(
        CalibrationWarning, match="measured for device 'A Faster CPU', this is .*measured again"
    ) as said:
        assert curve_for(model, key) == KnownCurve(CURVE)
    assert len(said) == 1
    assert read(key) == KnownCurve(CURVE)


def test_a_home_that_cannot_be_written_only_costs_time(
    key: Key, model: TransformersModel, measured: list[float], own_home: Path
) -> None:
    own_home.write_text("a file in the way")
    for _ in range(2):
        with pytest.warns(
            CalibrationWarning, match="cannot write .*set DRAFTWOOD_HOME.*every load measures"
        ) as said:
            assert curve_for(model, key) == KnownCurve(CURVE)
        assert len(said) == 1
    assert measured == [3.0, 3.0]


def test_a_full_disk_leaves_nothing_half_written(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    store(key, CURVE, "draftwood tune")

    def full(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:20].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"the disk is full; free some space, or set DRAFTWOOD_HOME"):
        store(key, Curve((1,), (1.0,)), "draftwood tune")
    assert read(key) == KnownCurve(CURVE)
    assert [path.name for path in key.path.parent.iterdir()] == [key.path.name]


def test_ctrl_c_leaves_nothing_half_written(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: Path, destination: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store(key, CURVE, "draftwood tune")
    assert not list(key.path.parent.iterdir())


def test_a_folder_in_the_file_s_place_is_no_crash(
    key: Key, model: TransformersModel, measured: list[float]
) -> None:
    key.path.mkdir(parents=True)
    with pytest.warns(CalibrationWarning) as said:
        assert curve_for(model, key) == KnownCurve(CURVE)
    assert "measured again" in str(said[0].message)


def test_a_curve_measured_beside_other_programs_is_marked(
    key: Key, model: TransformersModel, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disturbance, "LEAST_SHARE", 1e9)
    marked = KnownCurve(CURVE, is_good=False)
    assert curve_for(model, key) == marked
    assert json.loads(key.path.read_text())["busy"] is True
    assert read(key) == curve_for(model, key) == marked
    assert measured == [3.0]  # once is enough: passes correct it


def test_many_at_once_leave_one_whole_file(key: Key) -> None:
    writers = [
        threading.Thread(target=store, args=(key, CURVE, "draftwood tune")) for _ in range(16)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert read(key) == KnownCurve(CURVE)
    assert len(list(key.path.parent.iterdir())) == 1


# ---- a model's calibration


def test_a_model_from_memory_is_measured_in_a_second_and_not_stored(
    model: TransformersModel, measured: list[float], own_home: Path
) -> None:
    found = Calibration(model)
    assert found.curve is found.curve
    assert measured == [1.0]
    assert not own_home.exists()


def test_nothing_is_measured_before_someone_asks(
    model: TransformersModel, folder: Path, measured: list[float]
) -> None:
    found = Calibration(model, folder, "float32")
    assert measured == []
    assert found.curve == CURVE
    assert measured == [3.0]


def test_a_given_curve_spares_the_rest(
    model: TransformersModel, folder: Path, measured: list[float]
) -> None:
    given = Curve((1,), (1.0,))
    assert Calibration(model, folder, "float32", given).curve is given
    found = Calibration(model)
    found.use(given)
    assert found.curve is given
    assert measured == []


def test_what_is_no_curve_is_refused(model: TransformersModel) -> None:
    with pytest.raises(TypeError, match="curve"):
        Calibration(model, curve=[0.1, 0.2])  # type: ignore[arg-type]


def test_a_real_measurement_is_stored_and_found(
    model: TransformersModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "measure", measure)
    first = Calibration(model, folder, "float32").curve
    assert isinstance(first, Curve)
    assert Calibration(model, folder, "float32").curve == first


# ---- loads


def seconds_of(lm: draftwood.LanguageModel) -> object:
    """The curve by which the method of a language model chooses the size of its trees."""
    return lm.method.drafter.budget.seconds  # type: ignore[attr-defined]


WEIGHING = [
    name
    for name, recipe in methods.known().items()
    if "curve" in recipe.drafter.uses and "layers" not in recipe.needs
]


@pytest.mark.parametrize("name", WEIGHING)
def test_methods_that_weigh_costs_get_the_curve(name: str, measured: list[float]) -> None:
    tokenizer = words()
    lm = draftwood.load(tiny_llama(), tokenizer, method=name)
    followed = seconds_of(lm)
    assert isinstance(followed, Following)
    assert followed.curve == CURVE
    assert seconds_of(lm.with_method("plain").with_method(name)) is seconds_of(lm)
    assert measured == [1.0]
    given = Curve((1,), (1.0,))
    assert seconds_of(draftwood.load(tiny_llama(), tokenizer, method=name, curve=given)) is given
    assert measured == [1.0]


def test_other_methods_pay_nothing(measured: list[float]) -> None:
    tokenizer = words()
    for name in methods.known():
        given = {"draft-model", "head", "layers"} & methods.spec(name).needs
        if name not in WEIGHING and not given:
            draftwood.load(tiny_llama(), tokenizer, method=name)
    assert measured == []


# ---- what passes tell


@pytest.fixture
def followed(
    model: TransformersModel, folder: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> Calibration:
    """A calibration whose curve is stored, and which hears passes."""
    monkeypatch.setattr(Following, "saw", SAW)
    found = Calibration(model, folder, "float32")
    found.followed()
    return found


def tell(calibration: Calibration, ratio: float, times: int = 40) -> None:
    curve = calibration.followed(measures=False)
    assert isinstance(curve, Following)
    for number in range(times):
        nodes = (1, 4)[number % 2]
        curve.saw(PassTime(nodes, 128.0, ratio * CURVE(nodes)))


def test_a_curve_that_passes_bear_out_stays_as_it_is(followed: Calibration) -> None:
    tell(followed, 1.2)
    assert not followed.is_doubtful
    assert followed.key is not None
    before = followed.key.path.read_text()
    followed.keep("draftwood generate")
    followed.mend()
    assert followed.key.path.read_text() == before


def test_what_passes_tell_is_stored_where_the_curve_is_off_by_a_quarter(
    followed: Calibration, measured: list[float]
) -> None:
    tell(followed, 3.0)
    assert followed.is_doubtful
    followed.keep("draftwood generate")
    assert followed.key is not None
    record = json.loads(followed.key.path.read_text())
    assert record["measured_by"] == "draftwood generate"
    assert record["passes"] == 40
    assert "busy" not in record
    again = Calibration(followed.model, followed.folder, "float32")
    assert again.curve(1) == pytest.approx(3.0 * CURVE(1))
    assert again.is_doubtful  # until it is measured
    assert measured == [3.0]


def test_what_was_learnt_beside_other_programs_replaces_nothing_better(
    followed: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(followed, 3.0)
    monkeypatch.setattr(disturbance, "LEAST_SHARE", 1e9)
    followed.keep("draftwood generate")
    assert followed.key is not None
    assert read(followed.key) == KnownCurve(CURVE)


def test_what_was_learnt_of_an_assumed_curve_replaces_none_measured_meanwhile(
    model: TransformersModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Following, "saw", SAW)
    found = Calibration(model, folder, "float32")
    found.followed(measures=False)  # of another process
    tell(found, 3.0)
    assert found.key is not None
    store(found.key, CURVE, "draftwood tune")
    found.keep("draftwood generate")
    assert read(found.key) == KnownCurve(CURVE)
    store(found.key, CURVE, "draftwood tune", busy=True)
    found.keep("draftwood generate")
    assert read(found.key) != KnownCurve(CURVE, is_good=False)


def test_the_first_of_two_models_whose_passes_are_doubtful_is_found(
    model: TransformersModel, folder: Path
) -> None:
    good, doubtful = (Calibration(model, folder, "float32") for _ in range(2))
    for each in (doubtful, good):
        each.followed(measures=each is good)
    assert good.first_doubtful(None, doubtful) is doubtful
    assert doubtful.first_doubtful(good) is doubtful
    assert good.first_doubtful(None) is None


def test_a_curve_that_another_process_measured_meanwhile_is_taken(
    model: TransformersModel, folder: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Calibration(model, folder, "float32")
    assert made.key is not None
    key = made.key

    @contextmanager
    def waited(place: Path) -> Iterator[None]:
        assert place == key.path
        store(key, CURVE, "another process")
        yield

    monkeypatch.setattr(calibration, "locked_where_possible", waited)
    assert made.curve(1) == CURVE(1)
    assert measured == []


def test_a_curve_that_is_corrected_keeps_the_speed_ups_of_draft_models(
    followed: Calibration,
) -> None:
    assert followed.key is not None
    found = {"a draft model": {"rsd-s": 1.5}}
    store(followed.key, CURVE, "draftwood tune", speed_ups=found)
    tell(followed, 3.0)
    followed.keep("draftwood generate")
    assert read(followed.key) != KnownCurve(CURVE)  # corrected
    assert known_speed_ups(followed.key) == found


def test_a_few_passes_are_not_worth_a_file(
    model: TransformersModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Following, "saw", SAW)
    found = Calibration(model, folder, "float32")
    found.followed(measures=False)
    tell(found, 1.0, times=15)
    found.keep("draftwood generate")
    assert found.key is not None
    assert not found.key.path.exists()
    tell(found, 1.0, times=1)
    found.keep("draftwood generate")
    assert not read(found.key).is_good


def test_a_doubtful_curve_is_measured_again_when_there_is_time(
    followed: Calibration, measured: list[float]
) -> None:
    tell(followed, 3.0)
    followed.mend()
    assert measured == [3.0, 3.0]
    assert followed.curve is CURVE
    assert followed.key is not None
    assert read(followed.key) == KnownCurve(CURVE)
    tell(followed, 3.0)
    followed.mend()
    assert measured == [3.0, 3.0]  # once


def test_measuring_again_gives_up_after_one_noisy_try(
    followed: Calibration, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(followed, 3.0)
    assert followed.key is not None
    before = followed.key.path.read_text()
    monkeypatch.setattr(disturbance, "LEAST_SHARE", 1e9)
    for _ in range(2):
        followed.mend()
    assert measured == [3.0, 3.0]
    assert followed.curve(1) == pytest.approx(3.0 * CURVE(1))
    assert followed.key.path.read_text() == before


def test_measuring_again_makes_way_at_the_next_pass(
    followed: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(followed, 3.0)
    monkeypatch.setattr(calibration, "measure", measure)
    looks = iter([*[False] * 9, True])
    followed.mend(lambda: next(looks))  # a further look would raise
    assert followed.is_doubtful
    assert followed.curve(1) == pytest.approx(3.0 * CURVE(1))


def test_waiting_is_time_to_measure(followed: Calibration, measured: list[float]) -> None:
    with followed.mending(after=0.0):
        time.sleep(0.05)
    assert measured == [3.0]  # nothing was doubtful
    tell(followed, 3.0)
    with followed.mending(after=30.0):
        pass
    assert measured == [3.0]  # too short
    with followed.mending(after=0.0):
        for _ in range(500):
            if len(measured) == 2:
                break
            time.sleep(0.01)
    assert measured == [3.0, 3.0]


def test_threads_that_wait_for_a_cpu_show_in_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "_waited", iter([1.0, 4.0]).__next__)
    monkeypatch.setattr(disturbance, "_stolen", lambda: 0.0)
    monkeypatch.setattr(disturbance.time, "process_time", iter([10.0, 11.0]).__next__)
    assert disturbance.CpuShare().share == pytest.approx(0.25)


def test_a_cpu_to_itself_is_all_that_a_process_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "_words", lambda *told: 0.0)
    share = disturbance.CpuShare()
    sum(range(100_000))
    assert share.share == 1.0
