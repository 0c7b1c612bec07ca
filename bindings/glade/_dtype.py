"""The element types of tensors."""

import enum

bool_ = bool  # a member of the class takes the name

class DType(enum.Enum):
    """The element type of a tensor. Its name ("float32") or NumPy's dtype stands for it in every function."""

    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int64 = "int64"
    int32 = "int32"
    uint8 = "uint8"
    bool = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}.get(self.value, 1)

    @property
    def is_floating_point(self) -> bool_:
        """Whether the elements are real numbers."""
        return self.value.startswith(("float", "bfloat"))

    def __repr__(self) -> str:
        return f"glade.{self.value}"

    __str__ = __repr__
