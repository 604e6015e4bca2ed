from manyseeds import room

NAME = room(__name__)
