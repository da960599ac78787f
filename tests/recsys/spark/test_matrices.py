"""The truncated SVD of real ratings on the cluster is that of one machine."""

import numpy as np
import scipy.sparse as sp

import lowrank


def test_singular_values_of_the_ratings(spark, case):
    from lowrank.spark import truncated_svd

    train = case.train
    shape = (train.n_users, train.n_items)
    A = sp.csr_array(
        (train.values.astype(np.float64), train.indices, train.indptr), shape=shape
    )
    rows = (
        spark.read.parquet(f"{case.path}/users")
        .select("index", "others", "values")
        .cache()
    )
    options = {"indices": "others", "n_columns": train.n_items, "order": "index"}
    found = truncated_svd(rows, 5, **options, tol=1e-8, center=True, random_state=0)
    local = lowrank.truncated_svd(A, 5, center=True, tol=1e-10, random_state=0)
    np.testing.assert_allclose(found.s, local.s, rtol=1e-6)
    np.testing.assert_allclose(found.U, local.U, atol=1e-4)
    assert abs(found.error / local.error - 1) < 1e-6
    rows.unpersist()
