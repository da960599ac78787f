from .eigenwords import Eigenwords as Eigenwords
from .index import Index as Index
from .inputs import DocumentBatch as DocumentBatch
from .inputs import Documents as Documents
from .model import LSI as LSI
from .queries import UnknownTermWarning as UnknownTermWarning
from .space import Added as Added
from .vectorizer import words_of as words_of
