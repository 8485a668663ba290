"""The threshold engine, and what brings arrays in and out."""

from numba import types

from conehoyer._cuda import arrays, engine, held, projections

FLOAT, INT, BOOL = types.float64, types.int64, types.boolean

# Of a float32 kernel: the scalar search for τ, and adding up. What is done to each entry is done
# in float32; a constant that promotes it to float64 shows here.
FLOAT64_OPERATIONS = {
    "project_held_4": 600,
    "project_rows": 800,
    "project_long": 1200,
    "_gather": 0,
    "_scatter": 0,
}

# What a kernel must hold, and must not: each costs a tenth of the time or more.
WANTED = {
    "project_held_4": ["ld.global.v4.f32", "st.global.v4.f32", "ld.shared.v4.f32"],
    "project_held_8": ["ld.global.v2.f64", "st.global.v2.f64", "ld.shared.v2.f64"],
}
UNWANTED = {name: ["div.rn.f32", "sqrt.rn.f32"] for name in WANTED}


def array(kind, ndim, layout="C"):
    """An array's type."""
    return types.Array(kind, ndim, layout)


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    vector = array(FLOAT, 1)
    flags = array(types.int32, 1)
    asked = INT, BOOL, FLOAT, vector, FLOAT, FLOAT, FLOAT, vector, FLOAT
    engine_types = (
        *asked, FLOAT, vector, array(t, 2), array(t, 2), array(FLOAT, 2), flags,
    )  # fmt: skip
    yield held.KERNELS[t.bitwidth // 8], (
        *asked, array(t, 1), array(t, 1), array(FLOAT, 2), INT, INT, INT, INT,
        BOOL, BOOL, flags,
    )  # fmt: skip
    yield engine.project_rows, (*engine_types, BOOL, flags)
    yield engine.project_long, (*engine_types, INT, array(FLOAT, 3), array(t, 2))
    yield engine.count_bad, (array(t, 2), flags)
    yield projections.count_outside, (FLOAT, FLOAT, array(FLOAT, 1), flags)
    for ndim in (1, 2, 3):
        yield arrays._gather, (array(types.float16, ndim, "A"), array(t, 1))
        yield arrays._scatter, (array(t, 1), array(types.float16, ndim, "A"))
        yield arrays._gather, (array(t, ndim, "A"), array(t, 1))
        yield arrays._scatter, (array(t, 1), array(t, ndim, "A"))
    yield arrays._gather, (array(types.boolean, 1), array(types.float64, 1))
    yield arrays._gather_bfloat16, (array(types.int16, 2, "A"), array(types.int32, 1))
    yield arrays._scatter_bfloat16, (array(types.int32, 1), array(types.int16, 2, "A"))
    for kind, value in ((types.boolean,) * 2, (INT, INT), (FLOAT, INT), (FLOAT, FLOAT)):
        yield arrays._fill, (value, array(kind, 1))
    yield arrays._fill, (INT, flags)
    yield arrays._column, (array(FLOAT, 2), INT, array(types.int64, 1))
    yield arrays._column_differs, (array(FLOAT, 2), INT, FLOAT, array(types.boolean, 1))
