// Tensor's operators, straight in the type's slots: no call of Python's, no lookup, no overload resolution.
#include <glade/autograd/grad_mode.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/shape/shape.h>

#include "python.h"

namespace glade::python {

namespace {

/// Results of this few elements take less time than letting go of the interpreter lock and taking it again.
constexpr std::int64_t kFewElements = 1024;

/// f(), with the interpreter lock released unless the operands are small and on the CPU.
template <class F>
Tensor compute(const Tensor& a, F f) {
  if (a.numel() <= kFewElements && a.is_cpu()) return f();
  py::gil_scoped_release unlocked;
  return f();
}
template <class F>
Tensor compute(const Tensor& a, const Tensor& b, F f) {
  if (a.numel() <= kFewElements && b.numel() <= kFewElements && a.is_cpu() && b.is_cpu()) return f();
  py::gil_scoped_release unlocked;
  return f();
}

PyObject* not_implemented() { Py_RETURN_NOTIMPLEMENTED; }

/// `first op second`, where at least one is a tensor and the other a tensor, a number or an array. Op has `apply` for
/// two tensors, for a tensor and a number, and for a number and a tensor.
template <class Op>
PyObject* binary(PyObject* first, PyObject* second) {
  return guarded([&]() -> PyObject* {
    const bool first_is_tensor = is_tensor(first), second_is_tensor = is_tensor(second);
    if (first_is_tensor && second_is_tensor) {
      const Tensor &a = tensor_of(first), &b = tensor_of(second);
      return wrap(compute(a, b, [&] { return Op::apply(a, b); }));
    }
    if (first_is_tensor) {
      const Tensor& a = tensor_of(first);
      if (const auto number = scalar_from(second)) return wrap(compute(a, [&] { return Op::apply(a, *number); }));
      if (const Tensor b = tensor_from_array(second); b.defined()) return wrap(compute(a, b, [&] { return Op::apply(a, b); }));
    } else if (second_is_tensor) {
      const Tensor& b = tensor_of(second);
      if (const auto number = scalar_from(first)) return wrap(compute(b, [&] { return Op::apply(*number, b); }));
      if (const Tensor a = tensor_from_array(first); a.defined()) return wrap(compute(a, b, [&] { return Op::apply(a, b); }));
    }
    return not_implemented();
  });
}

/// Overwrites x with the result of an operation, whose dtype must be of x's kind.
const Tensor& replace(const char* operation, const Tensor& x, const Tensor& result) {
  if ((is_integral(x.dtype()) && is_floating(result.dtype())) ||
      (x.dtype() == DType::boolean && result.dtype() != DType::boolean))
    throw DTypeError(std::string(operation) + ": the result is " + std::string(dtype_name(result.dtype())) +
                     ", which does not fit in a tensor of " + std::string(dtype_name(x.dtype())));
  return copy_(x, result);
}

struct Add {
  static constexpr const char* kInPlace = "+=";
  static Tensor apply(const auto& a, const auto& b) { return a + b; }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return add_(x, y); }
};
struct Subtract {
  static constexpr const char* kInPlace = "-=";
  static Tensor apply(const auto& a, const auto& b) { return a - b; }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return add_(x, y, -1); }
};
struct Multiply {
  static constexpr const char* kInPlace = "*=";
  static Tensor apply(const auto& a, const auto& b) { return a * b; }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return multiply_(x, y); }
};
struct Divide {
  static constexpr const char* kInPlace = "/=";
  static Tensor apply(const auto& a, const auto& b) { return a / b; }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return replace(kInPlace, x, divide(x, y)); }
};
struct Power {
  static constexpr const char* kInPlace = "**=";
  static Tensor apply(const auto& a, const auto& b) { return power(a, b); }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return replace(kInPlace, x, power(x, y)); }
};
struct FloorDivide {
  static constexpr const char* kInPlace = "//=";
  static Tensor apply(const auto& a, const auto& b) { return floor_divide(a, b); }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return replace(kInPlace, x, floor_divide(x, y)); }
};
struct Remainder {
  static constexpr const char* kInPlace = "%=";
  static Tensor apply(const auto& a, const auto& b) { return remainder(a, b); }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return replace(kInPlace, x, remainder(x, y)); }
};
struct And {
  static constexpr const char* kInPlace = "&=";
  static Tensor apply(const Tensor& a, const auto& b) { return bitwise_and(a, b); }
  static Tensor apply(Scalar a, const Tensor& b) { return bitwise_and(b, a); }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return replace(kInPlace, x, bitwise_and(x, y)); }
};
struct Or {
  static constexpr const char* kInPlace = "|=";
  static Tensor apply(const Tensor& a, const auto& b) { return bitwise_or(a, b); }
  static Tensor apply(Scalar a, const Tensor& b) { return bitwise_or(b, a); }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return replace(kInPlace, x, bitwise_or(x, y)); }
};
struct Xor {
  static constexpr const char* kInPlace = "^=";
  static Tensor apply(const Tensor& a, const auto& b) { return bitwise_xor(a, b); }
  static Tensor apply(Scalar a, const Tensor& b) { return bitwise_xor(b, a); }
  static const Tensor& apply_in_place(const Tensor& x, const Tensor& y) { return replace(kInPlace, x, bitwise_xor(x, y)); }
};

PyObject* raise_to(PyObject* base, PyObject* exponent, PyObject* modulus) {
  return modulus == Py_None ? binary<Power>(base, exponent) : not_implemented();
}

/// Whether a tensor of this type holds a number beside it as kernels compute with it. Others would round or change it first.
bool is_wide(DType dtype) { return dtype == DType::float32 || dtype == DType::float64; }

/// x op= y, rounded once. Where the tape is to record it, x = x op y makes a new tensor; a leaf that requires a gradient is
/// refused by the in-place operation.
template <class Op>
PyObject* in_place(PyObject* self, PyObject* other) {
  return guarded([&]() -> PyObject* {
    const Tensor& x = tensor_of(self);
    Tensor y;
    const auto number = is_tensor(other) ? std::nullopt : scalar_from(other);
    if (is_tensor(other)) y = tensor_of(other);
    else if (number) y = full({}, *number, {number->promoted(x.dtype()), x.device()});
    else y = tensor_from_array(other);
    if (!y.defined()) return not_implemented();
    if (GradMode::enabled() && ((x.requires_grad() && !x.is_leaf()) || (!x.requires_grad() && y.requires_grad())))
      return binary<Op>(self, other);
    {
      py::gil_scoped_release unlocked;
      if (number && !is_wide(x.dtype())) replace(Op::kInPlace, x, Op::apply(x.detach(), *number));
      else Op::apply_in_place(x, y);
    }
    Py_INCREF(self);
    return self;
  });
}

PyObject* raise_in_place(PyObject* base, PyObject* exponent, PyObject* modulus) {
  return modulus == Py_None ? in_place<Power>(base, exponent) : not_implemented();
}

PyObject* matrix_multiply(PyObject* first, PyObject* second) {
  return guarded([&]() -> PyObject* {
    const Tensor a = is_tensor(first) ? tensor_of(first) : tensor_from_array(first);
    const Tensor b = is_tensor(second) ? tensor_of(second) : tensor_from_array(second);
    if (!a.defined() || !b.defined()) return not_implemented();
    return wrap(compute(a, b, [&] { return matmul(a, b); }));
  });
}

template <Tensor (*op)(const Tensor&)>
PyObject* unary(PyObject* self) {
  return guarded([&] {
    const Tensor& x = tensor_of(self);
    return wrap(compute(x, [&] { return op(x); }));
  });
}

PyObject* positive(PyObject* self) {
  Py_INCREF(self);
  return self;
}

// ---- comparisons ---------------------------------------------------------------------------------------------------

struct Less {
  static Tensor apply(const auto& a, const auto& b) { return a < b; }
};
struct LessEqual {
  static Tensor apply(const auto& a, const auto& b) { return a <= b; }
};
struct Equal {
  static Tensor apply(const auto& a, const auto& b) { return a == b; }
};
struct NotEqual {
  static Tensor apply(const auto& a, const auto& b) { return a != b; }
};
struct Greater {
  static Tensor apply(const auto& a, const auto& b) { return a > b; }
};
struct GreaterEqual {
  static Tensor apply(const auto& a, const auto& b) { return a >= b; }
};

PyObject* compare(PyObject* self, PyObject* other, int operation) {
  switch (operation) {
    case Py_LT: return binary<Less>(self, other);
    case Py_LE: return binary<LessEqual>(self, other);
    case Py_EQ: return binary<Equal>(self, other);
    case Py_NE: return binary<NotEqual>(self, other);
    case Py_GT: return binary<Greater>(self, other);
    default: return binary<GreaterEqual>(self, other);
  }
}

template <class F>
void* slot(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

PyType_Slot operator_slots[] = {
    {Py_nb_add, slot(binary<Add>)},
    {Py_nb_subtract, slot(binary<Subtract>)},
    {Py_nb_multiply, slot(binary<Multiply>)},
    {Py_nb_true_divide, slot(binary<Divide>)},
    {Py_nb_floor_divide, slot(binary<FloorDivide>)},
    {Py_nb_remainder, slot(binary<Remainder>)},
    {Py_nb_power, slot(raise_to)},
    {Py_nb_matrix_multiply, slot(matrix_multiply)},
    {Py_nb_inplace_add, slot(in_place<Add>)},
    {Py_nb_inplace_subtract, slot(in_place<Subtract>)},
    {Py_nb_inplace_multiply, slot(in_place<Multiply>)},
    {Py_nb_inplace_true_divide, slot(in_place<Divide>)},
    {Py_nb_inplace_floor_divide, slot(in_place<FloorDivide>)},
    {Py_nb_inplace_remainder, slot(in_place<Remainder>)},
    {Py_nb_inplace_power, slot(raise_in_place)},
    {Py_nb_inplace_and, slot(in_place<And>)},
    {Py_nb_inplace_or, slot(in_place<Or>)},
    {Py_nb_inplace_xor, slot(in_place<Xor>)},
    {Py_nb_negative, slot(unary<negative>)},
    {Py_nb_positive, slot(positive)},
    {Py_nb_absolute, slot(unary<abs>)},
    {Py_nb_invert, slot(unary<bitwise_not>)},
    {Py_nb_and, slot(binary<And>)},
    {Py_nb_or, slot(binary<Or>)},
    {Py_nb_xor, slot(binary<Xor>)},
    {Py_tp_richcompare, slot(compare)},
    {0, nullptr},
};

}  // namespace glade::python
