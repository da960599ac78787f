"""Indexes are saved and loaded as models are."""

import hashlib
import json

import numpy as np
import pytest

from recsys import LSI
from recsys.errors import ModelFileError
from recsys.saving.model_file import checksum as _checksum


@pytest.fixture
def saved(index, tmp_path):
    index.save(tmp_path / "index")
    return tmp_path / "index"


def test_a_loaded_index_answers_the_same(index, saved):
    loaded = LSI.load(saved, verify=True)
    assert loaded.get_params() == index.get_params()
    assert loaded.training_ == index.training_
    assert loaded.query("washes the hospital", n=9).equals(
        index.query("washes the hospital", n=9)
    )
    assert loaded.explain("nurse", 3).equals(index.explain("nurse", 3))
    assert loaded.similar_terms("nurse").equals(index.similar_terms("nurse"))


def test_arrays_are_mapped(saved):
    loaded = LSI.load(saved)
    base = loaded.components_
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_a_loaded_index_takes_further_documents(index, saved):
    loaded = LSI.load(saved)
    for lsi in (index, loaded):
        lsi.add_documents(["The nurse called the hospital."], method="update")
    assert loaded.query("nurse").equals(index.query("nurse"))
    loaded.save(saved, overwrite=True)
    assert LSI.load(saved).query("nurse").equals(index.query("nurse"))


@pytest.mark.parametrize(
    "settings", [{"weighting": "log-entropy"}, {"stop_words": {"the", "a"}}]
)
def test_parameters_come_back(everyday, tmp_path, settings):
    lsi = LSI(2, **settings).fit(
        everyday, ids=list("abcdefghijklmnop"), titles=["T"] * 16
    )
    lsi.save(tmp_path / "i")
    assert LSI.load(tmp_path / "i").query("nurse").equals(lsi.query("nurse"))


def test_an_index_of_a_matrix_is_saved(tmp_path):
    counts = np.random.default_rng(0).poisson(1.0, size=(9, 5)).astype(float)
    lsi = LSI(2).fit(counts)
    lsi.save(tmp_path / "i")
    loaded = LSI.load(tmp_path / "i")
    assert loaded.query(counts[0]).equals(lsi.query(counts[0]))
    assert loaded.document_vectors().dtype == np.float64


def test_a_changed_index_is_saved_again_in_its_place_and_elsewhere(everyday, tmp_path):
    LSI(3).fit(everyday * 4).save(tmp_path / "index")
    loaded = LSI.load(tmp_path / "index")
    loaded.add_documents(["A nurse called"], ids=[99])
    loaded.remove_documents([3])
    loaded.save(tmp_path / "index", overwrite=True)
    loaded.add_documents(["The doctor called"], ids=[100])
    loaded.save(tmp_path / "more")
    for name in ("index", "more"):
        again = LSI.load(tmp_path / name, verify=True)
        assert 3 not in again.query("nurse", 50)["document"].to_list()
        assert 99 in again.query("nurse", 50)["document"].to_list()
    assert again.query("doctor", 50).equals(loaded.query("doctor", 50))


def test_other_files_at_the_target_are_not_replaced(index, saved, tmp_path):
    with pytest.raises(ModelFileError, match="there is a saved index already"):
        index.save(saved)
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelFileError, match="it exists and is not a saved index"):
        index.save(tmp_path / "other", overwrite=True)
    with pytest.raises(
        ModelFileError, match=r"The index cannot be saved in .*no directory"
    ):
        index.save(tmp_path / "none" / "index")


def rejected(path, message):
    with pytest.raises(ModelFileError, match=message):
        LSI.load(path)


def test_rejects_a_directory_without_index(saved, tmp_path):
    rejected(tmp_path / "indx", "There is no saved index .*; did you mean .*index")
    rejected(tmp_path, "is not a saved index: it has no model.json")
    document = json.loads((saved / "model.json").read_text())
    document["format"] = "recsys-model"
    (saved / "model.json").write_text(json.dumps(document))
    rejected(
        saved, "is not a saved index: it is a saved model of ratings; see `recsys info`"
    )


def test_names_damaged_files(saved):
    file = saved / "arrays" / "embedding.npy"
    contents = bytearray(file.read_bytes())
    contents[-1] ^= 1
    file.write_bytes(contents)
    rejected(
        saved,
        "saved index .* is damaged: the contents of arrays/embedding.npy have changed",
    )
    file.unlink()
    rejected(saved, "is damaged: arrays/embedding.npy is missing")


def edited(path, change):
    document = json.loads((path / "model.json").read_text())
    change(document)
    document["checksum"] = _checksum(document)
    (path / "model.json").write_text(json.dumps(document))


def test_a_manifest_with_foreign_entries_is_rejected(saved):
    edited(saved, lambda d: d["parameters"].update(nonsense=1))
    rejected(saved, "is damaged: .*unexpected keyword argument 'nonsense'")


def test_a_manifest_without_the_counts_is_rejected(saved):
    edited(saved, lambda d: d["training"].pop("words"))
    rejected(
        saved,
        "is damaged: training in model.json: Object missing required field `words`",
    )


def test_arrays_that_do_not_fit_together_are_rejected(index, tmp_path):
    index.singular_values_ = index.singular_values_[:-1]
    index.save(tmp_path / "i")
    rejected(
        tmp_path / "i",
        r"is damaged: components must have shape \(4, \d+\), not \(5, \d+\)",
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "counts_indptr",
            lambda a: a[::-1].copy(),
            "counts_indptr does not rise from 0",
        ),
        ("counts_indptr", lambda a: a * 1000, "counts_indptr does not end at"),
        (
            "counts_indptr",
            lambda a: a.astype(np.float64),
            "counts_indptr has the type <f8",
        ),
        ("counts_indices", lambda a: a[:-1], "counts_indices must have shape"),
        (
            "counts_indices",
            lambda a: a - 1,
            "the entries of counts_indptr have columns that do not exist",
        ),
        (
            "counts_data",
            lambda a: a.astype(">f4"),
            r"model.json: Expected `str` matching",
        ),
        (
            "counts_data",
            lambda a: a * np.nan,
            "counts_data has values that are not finite",
        ),
        ("components", lambda a: a.astype(np.float16), "components has the type <f2"),
        (
            "postings_documents",
            lambda a: a.astype(np.int64),
            "postings_documents has the type <i8",
        ),
        (
            "postings_counts",
            lambda a: a.astype(np.float64),
            "postings_counts has the type <f8",
        ),
        (
            "singular_values",
            lambda a: a[:, None],
            r"singular_values must have shape \(5,\)",
        ),
    ],
)
def test_arrays_that_would_lead_out_of_memory(saved, name, change, message):
    """With sizes and checksums that fit; scipy and the kernels would believe them."""
    file = saved / "arrays" / f"{name}.npy"
    array = change(np.load(file))
    np.save(file, array)
    content = file.read_bytes()
    entry = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    }
    edited(
        saved, lambda document: document["files"][f"arrays/{name}.npy"].update(entry)
    )
    rejected(saved, f"is damaged: {message}")
