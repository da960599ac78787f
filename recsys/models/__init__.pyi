from .base import FactorModel as FactorModel
from .base import Model as Model
from .histories import Explanation as Explanation
from .histories import Histories as Histories
from .parameters import fitted as fitted
from .parameters import model as model
from .parameters import parameter as parameter
