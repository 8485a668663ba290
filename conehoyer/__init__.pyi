from . import blocksparse as blocksparse
from . import optim as optim
from . import torch as torch
from ._results import ConvergenceWarning as ConvergenceWarning
from ._results import ProjectionInfo as ProjectionInfo
from ._threads import get_workers as get_workers
from ._threads import set_workers as set_workers
from .bilevel import BilevelInfo as BilevelInfo
from .bilevel import level_for_groups as level_for_groups
from .bilevel import project_bilevel as project_bilevel
from .bilevel import project_l1inf_ball as project_l1inf_ball
from .gsp import GSPInfo as GSPInfo
from .gsp import project_gsp as project_gsp
from .levels import level_for_nnz as level_for_nnz
from .levels import level_for_sparseness as level_for_sparseness
from .nmf import NMFResult as NMFResult
from .nmf import nmf_hals as nmf_hals
from .projections import project_cai as project_cai
from .projections import project_hoyer as project_hoyer
from .projections import project_l1_ball as project_l1_ball
from .projections import project_simplex as project_simplex
from .scores import cai_score as cai_score
from .scores import gsp_score as gsp_score
from .scores import hoyer_score as hoyer_score
from .scores import hoyer_sparseness as hoyer_sparseness

__version__: str
__all__: list[str]
