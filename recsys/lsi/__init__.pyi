from .documents import DocumentBatch as DocumentBatch
from .documents import Documents as Documents
from .eigenwords import Eigenwords as Eigenwords
from .index import Index as Index
from .model import LSI as LSI
from .queries import UnknownTermWarning as UnknownTermWarning
from .space import Added as Added
from .vectorizer import words_of as words_of
