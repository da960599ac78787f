from .collection import DocumentBatch as DocumentBatch
from .collection import Documents as Documents
from .collection import read_documents as read_documents
from .eigenwords import Eigenwords as Eigenwords
from .model import LSI as LSI
from .queries import UnknownTermWarning as UnknownTermWarning
from .space import Added as Added
