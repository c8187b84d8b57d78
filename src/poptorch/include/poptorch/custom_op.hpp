// Custom operators for PopTorch programs, in C++17 and nothing else: no library to link, no generated code.
//
// Derive from poptorch::Op, register with a static poptorch::OpCreator, compile to a shared library and load it with
// ctypes.cdll.LoadLibrary. Then poptorch.custom_op finds the operator by domain, name and version:
//
//   c++ -std=c++17 -O2 -shared -fPIC -I"$(python -c 'import poptorch; print(poptorch.includePath())')"
//       my_op.cpp -o libmy_op.so
//
// What each class has to provide is described at the class. docs/operations.md walks through an example.

#ifndef POPTORCH_CUSTOM_OP_HPP
#define POPTORCH_CUSTOM_OP_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace poptorch {

using Shape = std::vector<int64_t>;

// Element types that tensors on the device have. 64-bit integers arrive as Int32, float64 as Float32.
enum class DataType : int32_t { Float32 = 0, Float16 = 1, Int32 = 2, Int16 = 3, Int8 = 4, UInt8 = 5, Bool = 6 };

// IEEE half precision: storage only, arithmetic happens in float.
class half {
public:
  half() = default;
  half(float value) : bits_(fromFloat(value)) {}
  operator float() const { return toFloat(bits_); }

private:
  static uint16_t fromFloat(float value) {
    uint32_t x;
    std::memcpy(&x, &value, sizeof x);
    const uint32_t sign = (x >> 16) & 0x8000u;
    const uint32_t magnitude = x & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u); // rounds beyond the largest half
    if (magnitude < 0x38800000u) {                                              // subnormal half, or zero
      if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);
      const uint32_t shift = 126u - (magnitude >> 23);
      const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      uint32_t result = mantissa >> shift;
      const uint32_t rest = mantissa & ((1u << shift) - 1u), middle = 1u << (shift - 1u);
      if (rest > middle || (rest == middle && (result & 1u))) ++result;
      return static_cast<uint16_t>(sign | result);
    }
    const uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
  }
  static float toFloat(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu, x;
    if (exponent == 0x1fu) {
      x = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent != 0) {
      x = sign | ((exponent + 112u) << 23) | (mantissa << 13);
    } else if (mantissa == 0) {
      x = sign;
    } else {
      exponent = 113u;
      while (!(mantissa & 0x400u)) {
        mantissa <<= 1;
        --exponent;
      }
      x = sign | (exponent << 23) | ((mantissa & 0x3ffu) << 13);
    }
    float value;
    std::memcpy(&value, &x, sizeof value);
    return value;
  }
  uint16_t bits_ = 0;
};

template <typename T> constexpr DataType dataTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DataType::Float32;
  else if constexpr (std::is_same_v<T, half>) return DataType::Float16;
  else if constexpr (std::is_same_v<T, int32_t>) return DataType::Int32;
  else if constexpr (std::is_same_v<T, int16_t>) return DataType::Int16;
  else if constexpr (std::is_same_v<T, int8_t>) return DataType::Int8;
  else if constexpr (std::is_same_v<T, uint8_t>) return DataType::UInt8;
  else {
    static_assert(std::is_same_v<T, bool>, "not an element type of a device tensor");
    return DataType::Bool;
  }
}

inline const char *nameOf(DataType type) {
  static const char *const names[] = {"float32", "float16", "int32", "int16", "int8", "uint8", "bool"};
  return names[static_cast<int>(type)];
}

// Element type and shape of a tensor.
class TensorInfo {
public:
  TensorInfo() = default;
  TensorInfo(DataType type, Shape shape) : type_(type), shape_(std::move(shape)) {}
  void set(DataType type, Shape shape) {
    type_ = type;
    shape_ = std::move(shape);
  }
  DataType dataType() const { return type_; }
  const Shape &shape() const { return shape_; }
  int64_t rank() const { return static_cast<int64_t>(shape_.size()); }
  int64_t nelms() const {
    int64_t count = 1;
    for (int64_t size : shape_) count *= size;
    return count;
  }

private:
  DataType type_ = DataType::Float32;
  Shape shape_;
};

// The named, typed values that poptorch.custom_op(attributes={...}) passes. Int and Float are different types.
class Attributes {
public:
  using Float = float;
  using Floats = std::vector<float>;
  using Int = int64_t;
  using Ints = std::vector<int64_t>;
  using String = std::string;
  using Strings = std::vector<std::string>;
  using Value = std::variant<Float, Int, String, Floats, Ints, Strings>;

  bool hasAttribute(const std::string &key) const { return values_.count(key) != 0; }

  // The value of `key`; an error if it is missing or has another type.
  template <typename T> T getAttribute(const std::string &key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw std::runtime_error("no attribute key " + key);
    if (const T *value = std::get_if<T>(&found->second)) return *value;
    throw std::runtime_error("attribute " + key + " is of type " + kTypes[found->second.index()] +
                             ", but the operator reads it as " + kTypes[Value(T{}).index()]);
  }
  template <typename T> T getAttribute(const std::string &key, const T &otherwise) const {
    return hasAttribute(key) ? getAttribute<T>(key) : otherwise;
  }
  void set(const std::string &key, Value value) { values_[key] = std::move(value); }
  const std::map<std::string, Value> &values() const { return values_; }

private:
  static constexpr const char *kTypes[] = {"Float", "Int", "String", "Floats", "Ints", "Strings"};
  std::map<std::string, Value> values_;
};

// What identifies an operator. Several versions of one operator may exist; the highest one that is not above the
// requested version is used.
struct OperatorIdentifier {
  struct Inputs {
    Inputs(int n) : min(n), max(n) {}
    Inputs(int min_, int max_) : min(min_), max(max_) {}
    int min, max;
  };
  OperatorIdentifier(std::string domain_, std::string name_, int version_, Inputs inputs_ = {0, 1 << 20}, int outputs_ = 1)
      : domain(domain_.empty() ? "ai.onnx" : std::move(domain_)), name(std::move(name_)), version(version_),
        inputs(inputs_), outputs(outputs_) {}
  std::string domain, name;
  int version;
  Inputs inputs;
  int outputs;
};

// Where input `iGrad` of a gradient operator comes from: the gradient of the forward operator's output `iNonGrad`, the
// forward input of that index, or the forward output of that index.
enum class GradOpInType : int32_t { In = 0, Out = 1, GradOut = 2 };
struct GradInOutMapper {
  int iGrad;
  int iNonGrad;
  GradOpInType type;
};

namespace abi {
struct Tensor {
  void *data;
  const int64_t *shape;
  int32_t rank;
  int32_t dtype;
};
// The replica that a thread computes for.
struct Replicas {
  int32_t number, count;
  int32_t (*gather)(const void *values, int64_t bytes, void *all); // 0, or -1 after a failure
};
} // namespace abi

// Set by Python around compute() of operators that communicate; null where a model has one replica.
__attribute__((visibility("hidden"))) inline const abi::Replicas *&replicasOfThread() {
  static thread_local const abi::Replicas *replicas = nullptr;
  return replicas;
}

// The tensors of one execution. They are dense and in row-major order; outputs have the shapes that setup() gave.
class Kernel {
public:
  Kernel(const std::vector<TensorInfo> &in, const std::vector<TensorInfo> &out, const abi::Tensor *inputs,
         const abi::Tensor *outputs)
      : in_(in), out_(out), inputs_(inputs), outputs_(outputs) {}

  const TensorInfo &inInfo(int index) const { return in_.at(static_cast<size_t>(index)); }
  const TensorInfo &outInfo(int index) const { return out_.at(static_cast<size_t>(index)); }
  int numInputs() const { return static_cast<int>(in_.size()); }
  int numOutputs() const { return static_cast<int>(out_.size()); }

  template <typename T> const T *in(int index) const {
    check<T>("input", index, inInfo(index));
    return static_cast<const T *>(inputs_[index].data);
  }
  template <typename T> T *out(int index) const {
    check<T>("output", index, outInfo(index));
    return static_cast<T *>(outputs_[index].data);
  }

  // For operators that say `static constexpr bool communicates = true;`: which replica computes, and how many there are,
  // those of other processes included.
  int replica() const { return replicasOfThread() ? replicasOfThread()->number : 0; }
  int replicas() const { return replicasOfThread() ? replicasOfThread()->count : 1; }

  // The values of all replicas, one after the other in the order of their numbers. Each of them must call this, with
  // values of one type and the same number of them; they wait for each other.
  template <typename T> std::vector<T> allGather(const T *values, int64_t count) const {
    std::vector<T> all(static_cast<size_t>(count) * static_cast<size_t>(replicas()));
    if (!replicasOfThread()) std::copy(values, values + count, all.begin());
    else if (replicasOfThread()->gather(values, count * static_cast<int64_t>(sizeof(T)), all.data()) != 0)
      throw std::runtime_error("the exchange between replicas has failed");
    return all;
  }

private:
  template <typename T> static void check(const char *what, int index, const TensorInfo &info) {
    if (info.dataType() != dataTypeOf<T>())
      throw std::runtime_error(std::string(what) + " " + std::to_string(index) + " is of type " +
                               nameOf(info.dataType()) + ", but the kernel uses it as " + nameOf(dataTypeOf<T>()));
  }
  const std::vector<TensorInfo> &in_, &out_;
  const abi::Tensor *inputs_, *outputs_;
};

// Call f(T{}) with the C++ type of `type`, for kernels that work on float32 and float16 alike (or on any type).
template <typename F> void forFloatingType(DataType type, F &&f) {
  if (type == DataType::Float32) f(float{});
  else if (type == DataType::Float16) f(half{});
  else throw std::runtime_error(std::string("expected a floating point tensor, not ") + nameOf(type));
}
template <typename F> void forNumericType(DataType type, F &&f) {
  switch (type) {
  case DataType::Int32: return f(int32_t{});
  case DataType::Int16: return f(int16_t{});
  case DataType::Int8: return f(int8_t{});
  case DataType::UInt8: return f(uint8_t{});
  default: return forFloatingType(type, std::forward<F>(f));
  }
}

// One operator: its shapes, its kernel and its gradient. Objects are made once and used by many threads, so compute()
// is const; attributes are read in the constructor.
class Op {
public:
  virtual ~Op() = default;

  // Set outInfo(i) for every output, from inInfo(j) and the attributes. Called with shapes only, before any data exists.
  virtual void setup() = 0;

  // Read kernel.in<T>(i), write kernel.out<T>(i).
  virtual void compute(const Kernel &kernel) const = 0;

  // The operators that compute gradients; none if the operator cannot be trained through. Inputs that no gradient
  // operator covers receive no gradient.
  virtual std::vector<std::unique_ptr<Op>> getGradOps() const { return {}; }

  // For gradient operators: where the inputs come from, and which forward input each output is the gradient of.
  virtual std::vector<GradInOutMapper> gradInputInfo() const { return {}; }
  virtual std::map<int, int> gradOutToNonGradIn() const { return {}; }

  // Cycles on one IPU, for cost estimates; negative: unknown.
  virtual double cycles() const { return -1.0; }

protected:
  Op() = default;
  const TensorInfo &inInfo(int index) const { return in_.at(static_cast<size_t>(index)); }
  const Shape &inShape(int index) const { return inInfo(index).shape(); }
  DataType inType(int index) const { return inInfo(index).dataType(); }
  int numInputs() const { return static_cast<int>(in_.size()); }
  TensorInfo &outInfo(int index) {
    if (static_cast<size_t>(index) >= out_.size()) out_.resize(static_cast<size_t>(index) + 1);
    return out_[static_cast<size_t>(index)];
  }
  const TensorInfo &outInfo(int index) const { return out_.at(static_cast<size_t>(index)); }

private:
  friend struct Bridge;
  std::vector<TensorInfo> in_, out_;
};

using Factory = std::function<std::unique_ptr<Op>(const Attributes &)>;

// ---- the boundary to Python: plain C structures and functions; do not call these -----------------------------------

namespace abi {
constexpr int32_t kVersion = 1;
struct Attribute {
  const char *key;
  int32_t type; // index in Attributes::Value
  int32_t count;
  const void *values;
};
struct Operator {
  const char *domain, *name;
  int32_t version, min_inputs, max_inputs, outputs;
  const void *entry;
};
struct Communication {
  int32_t (*communicates)(int32_t index);
  void (*enter)(const Replicas *replicas); // null: leave
};
struct Functions {
  int32_t abi_version;
  int32_t (*count)();
  void (*describe)(int32_t index, Operator *result);
  void *(*create)(const void *entry, const Attribute *attributes, int32_t count, char *error, int64_t error_size);
  void *(*gradient)(const void *op, int32_t index, char *error, int64_t error_size);
  void (*destroy)(void *op);
  int32_t (*gradients)(const void *op, char *error, int64_t error_size);
  // Writes up to `room` triples (grad input, forward index, kind), then pairs (grad output, forward input).
  int32_t (*gradient_inputs)(const void *op, int32_t *triples, int32_t room);
  int32_t (*gradient_outputs)(const void *op, int32_t *pairs, int32_t room);
  // Shapes: outputs are written as type, rank, sizes into `result`; returns the number of outputs, or -1.
  int32_t (*infer)(const void *op, const Tensor *inputs, int32_t count, int64_t *result, int64_t room, double *cycles,
                   char *error, int64_t error_size);
  int32_t (*compute)(const void *op, const Tensor *inputs, int32_t count, const Tensor *outputs, int32_t output_count,
                     char *error, int64_t error_size);
};
} // namespace abi

struct RegisteredOp {
  OperatorIdentifier id;
  Factory make;
  bool communicates;
};

// Whether class T has a static member `communicates` that is true.
template <typename T, typename = void> struct Communicates : std::false_type {};
template <typename T> struct Communicates<T, std::enable_if_t<T::communicates>> : std::true_type {};

// Hidden, so that each shared library has a list of its own, however it is loaded.
__attribute__((visibility("hidden"))) inline std::vector<std::unique_ptr<RegisteredOp>> &registeredOps() {
  static std::vector<std::unique_ptr<RegisteredOp>> ops;
  return ops;
}

// Registers operator class T when constructed; make it a static object. The default factory calls T(attributes) if
// there is such a constructor, else T().
template <typename T> class OpCreator {
public:
  explicit OpCreator(OperatorIdentifier id, Factory factory = defaultFactory()) {
    registeredOps().push_back(
        std::make_unique<RegisteredOp>(RegisteredOp{std::move(id), std::move(factory), Communicates<T>::value}));
  }
  explicit OpCreator(const std::vector<OperatorIdentifier> &ids, Factory factory = defaultFactory()) {
    for (const auto &id : ids)
      registeredOps().push_back(std::make_unique<RegisteredOp>(RegisteredOp{id, factory, Communicates<T>::value}));
  }

private:
  static Factory defaultFactory() {
    return [](const Attributes &attributes) -> std::unique_ptr<Op> {
      if constexpr (std::is_constructible_v<T, const Attributes &>) return std::make_unique<T>(attributes);
      else if constexpr (std::is_default_constructible_v<T>) return std::make_unique<T>();
      else throw std::runtime_error("the operator class needs a factory: it has no constructor (const Attributes &)");
    };
  }
};

struct __attribute__((visibility("hidden"))) Bridge {
  struct Instance {
    std::unique_ptr<Op> op;
    mutable std::mutex shapes; // setup() works on the object; one shape inference at a time
  };

  static void report(const std::string &text, char *error, int64_t size) {
    if (size <= 0) return;
    const size_t length = std::min(text.size(), static_cast<size_t>(size - 1));
    std::memcpy(error, text.data(), length);
    error[length] = '\0';
  }
  // No exception may cross into Python: it becomes text, and `failed` the result.
  template <typename R, typename F> static R guarded(R failed, char *error, int64_t size, F &&body) {
    try {
      return body();
    } catch (const std::exception &problem) {
      report(problem.what()[0] ? problem.what() : "unnamed C++ exception", error, size);
    } catch (...) {
      report("C++ exception that is not a std::exception", error, size);
    }
    return failed;
  }
  static const Instance &instance(const void *op) { return *static_cast<const Instance *>(op); }

  static Attributes attributes(const abi::Attribute *given, int32_t count) {
    Attributes result;
    for (int32_t i = 0; i < count; ++i) {
      const abi::Attribute &a = given[i];
      const auto n = static_cast<size_t>(a.count);
      const auto *floats = static_cast<const float *>(a.values);
      const auto *ints = static_cast<const int64_t *>(a.values);
      const auto *strings = static_cast<const char *const *>(a.values);
      switch (a.type) {
      case 0: result.set(a.key, floats[0]); break;
      case 1: result.set(a.key, ints[0]); break;
      case 2: result.set(a.key, std::string(strings[0])); break;
      case 3: result.set(a.key, Attributes::Floats(floats, floats + n)); break;
      case 4: result.set(a.key, Attributes::Ints(ints, ints + n)); break;
      case 5: result.set(a.key, Attributes::Strings(strings, strings + n)); break;
      default: throw std::runtime_error(std::string("attribute ") + a.key + " has an unknown type");
      }
    }
    return result;
  }
  static std::vector<TensorInfo> infos(const abi::Tensor *tensors, int32_t count) {
    std::vector<TensorInfo> result;
    for (int32_t i = 0; i < count; ++i)
      result.emplace_back(static_cast<DataType>(tensors[i].dtype),
                          Shape(tensors[i].shape, tensors[i].shape + tensors[i].rank));
    return result;
  }

  static int32_t count() { return static_cast<int32_t>(registeredOps().size()); }
  static void describe(int32_t index, abi::Operator *result) {
    const RegisteredOp &op = *registeredOps()[static_cast<size_t>(index)];
    *result = {op.id.domain.c_str(), op.id.name.c_str(), op.id.version, op.id.inputs.min, op.id.inputs.max,
               op.id.outputs, &op};
  }
  static void *create(const void *entry, const abi::Attribute *given, int32_t count, char *error, int64_t size) {
    return guarded<void *>(nullptr, error, size, [&]() -> void * {
      auto made = std::make_unique<Instance>();
      made->op = static_cast<const RegisteredOp *>(entry)->make(attributes(given, count));
      if (!made->op) throw std::runtime_error("the factory returned no operator");
      return made.release();
    });
  }
  static int32_t gradients(const void *op, char *error, int64_t size) {
    return guarded<int32_t>(-1, error, size,
                            [&] { return static_cast<int32_t>(instance(op).op->getGradOps().size()); });
  }
  static void *gradient(const void *op, int32_t index, char *error, int64_t size) {
    return guarded<void *>(nullptr, error, size, [&]() -> void * {
      auto made = std::make_unique<Instance>();
      made->op = std::move(instance(op).op->getGradOps().at(static_cast<size_t>(index)));
      if (!made->op) throw std::runtime_error("getGradOps() returned an empty pointer");
      return made.release();
    });
  }
  static void destroy(void *op) { delete static_cast<Instance *>(op); }
  static int32_t gradientInputs(const void *op, int32_t *triples, int32_t room) {
    const auto mappers = instance(op).op->gradInputInfo();
    for (int32_t i = 0; i < static_cast<int32_t>(mappers.size()) && i < room; ++i) {
      const auto &m = mappers[static_cast<size_t>(i)];
      triples[3 * i] = m.iGrad;
      triples[3 * i + 1] = m.iNonGrad;
      triples[3 * i + 2] = static_cast<int32_t>(m.type);
    }
    return static_cast<int32_t>(mappers.size());
  }
  static int32_t gradientOutputs(const void *op, int32_t *pairs, int32_t room) {
    const auto map = instance(op).op->gradOutToNonGradIn();
    int32_t i = 0;
    for (const auto &pair : map) {
      if (i < room) {
        pairs[2 * i] = pair.first;
        pairs[2 * i + 1] = pair.second;
      }
      ++i;
    }
    return i;
  }
  static int32_t infer(const void *handle, const abi::Tensor *inputs, int32_t count, int64_t *result, int64_t room,
                       double *cycles, char *error, int64_t size) {
    return guarded<int32_t>(-1, error, size, [&] {
      const Instance &self = instance(handle);
      const std::lock_guard<std::mutex> lock(self.shapes);
      Op &op = *self.op;
      op.in_ = infos(inputs, count);
      op.out_.clear();
      op.setup();
      *cycles = op.cycles();
      int64_t at = 0;
      for (const TensorInfo &info : op.out_) {
        if (at + 2 + info.rank() > room) throw std::runtime_error("the output shapes are too long");
        result[at++] = static_cast<int64_t>(info.dataType());
        result[at++] = info.rank();
        for (int64_t dimension : info.shape()) {
          if (dimension < 0) throw std::runtime_error("setup() gave an output a negative size");
          result[at++] = dimension;
        }
      }
      return static_cast<int32_t>(op.out_.size());
    });
  }
  static int32_t compute(const void *handle, const abi::Tensor *inputs, int32_t count, const abi::Tensor *outputs,
                         int32_t output_count, char *error, int64_t size) {
    return guarded<int32_t>(-1, error, size, [&] {
      const auto in = infos(inputs, count), out = infos(outputs, output_count);
      instance(handle).op->compute(Kernel(in, out, inputs, outputs));
      return 0;
    });
  }
  static int32_t communicates(int32_t index) { return registeredOps()[static_cast<size_t>(index)]->communicates; }
  static void enter(const abi::Replicas *replicas) { replicasOfThread() = replicas; }
  static const abi::Communication *communication() {
    static const abi::Communication table = {communicates, enter};
    return &table;
  }
  static const abi::Functions *functions() {
    static const abi::Functions table = {abi::kVersion, count,     describe,       create,          gradient, destroy,
                                         gradients,     gradientInputs, gradientOutputs, infer,    compute};
    return &table;
  }
};

} // namespace poptorch

// The symbols that are looked up in loaded libraries.
extern "C" __attribute__((visibility("default"), used)) inline const poptorch::abi::Functions *
poptorch_custom_ops_v1() {
  return poptorch::Bridge::functions();
}
extern "C" __attribute__((visibility("default"), used)) inline const poptorch::abi::Communication *
poptorch_custom_ops_communication_v1() {
  return poptorch::Bridge::communication();
}

#endif // POPTORCH_CUSTOM_OP_HPP
