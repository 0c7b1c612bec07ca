"""bfloat16 for NumPy, which has no such type of its own."""

import numpy


class _Memory:
    """A tensor's memory as 16-bit integers, by NumPy's array interface; arrays over it keep the tensor alive."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<u2",
            "shape": tensor.shape,
            "strides": tuple(2 * stride for stride in tensor.strides),
            "data": (tensor.data_ptr(), False),
        }


def bfloat16_array(tensor):
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("NumPy has no bfloat16: install the package ml_dtypes, or take x.float() first") from None
    if tensor.numel() == 0:
        return numpy.empty(tensor.shape, ml_dtypes.bfloat16)
    return numpy.asarray(_Memory(tensor)).view(ml_dtypes.bfloat16)
