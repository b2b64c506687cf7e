// A libcudnn.so.9 that computes nothing and writes down, in FAKE_CUDNN_LOG, what it is asked: a
// line for each finalized tensor, operation and plan, and for each call. FAKE_CUDNN says what it
// refuses: "start" (no handle), "version" (it is cuDNN 8), "first" (the first engine's plan),
// "engines" (all plans), "heuristics" (the order of engines), "softmax" (the exponential),
// "execute".
#include <cudnn_graph.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

bool refuses(const char* what) {
  const char* mode = std::getenv("FAKE_CUDNN");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

void log(const std::string& line) {
  const char* path = std::getenv("FAKE_CUDNN_LOG");
  if (path != nullptr) std::ofstream(path, std::ios::app) << line << '\n';
}

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<std::int64_t>> numbers;  // tensors as their names
  std::map<int, const Descriptor*> parts;
  bool final = false;
};

std::string numbers_of(const Descriptor& descriptor, int attribute) {
  std::string text;
  const auto found = descriptor.numbers.find(attribute);
  if (found == descriptor.numbers.end()) return "-";
  for (const std::int64_t each : found->second) {
    text += (text.empty() ? "" : ",") + std::to_string(each);
  }
  return text;
}

std::string tensor_of(const Descriptor& operation, int attribute) {
  const auto found = operation.parts.find(attribute);
  return found == operation.parts.end() ? "-"
                                        : numbers_of(*found->second, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

std::string described(const Descriptor& of) {
  switch (of.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return "tensor " + numbers_of(of, CUDNN_ATTR_TENSOR_UNIQUE_ID) + " type " +
             numbers_of(of, CUDNN_ATTR_TENSOR_DATA_TYPE) + " sizes " +
             numbers_of(of, CUDNN_ATTR_TENSOR_DIMENSIONS) + " strides " +
             numbers_of(of, CUDNN_ATTR_TENSOR_STRIDES) + " virtual " +
             numbers_of(of, CUDNN_ATTR_TENSOR_IS_VIRTUAL) + " by-value " +
             numbers_of(of, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return "matmul " + tensor_of(of, CUDNN_ATTR_OPERATION_MATMUL_ADESC) + " " +
             tensor_of(of, CUDNN_ATTR_OPERATION_MATMUL_BDESC) + " to " +
             tensor_of(of, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return "reshape " + tensor_of(of, CUDNN_ATTR_OPERATION_RESHAPE_XDESC) + " to " +
             tensor_of(of, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return "reduce " +
             numbers_of(*of.parts.at(CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                        CUDNN_ATTR_REDUCTION_OPERATOR) +
             " of " + tensor_of(of, CUDNN_ATTR_OPERATION_REDUCTION_XDESC) + " to " +
             tensor_of(of, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Descriptor& how = *of.parts.at(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      return "pointwise " + numbers_of(how, CUDNN_ATTR_POINTWISE_MODE) + " axis " +
             numbers_of(how, CUDNN_ATTR_POINTWISE_AXIS) + " of " +
             tensor_of(of, CUDNN_ATTR_OPERATION_POINTWISE_XDESC) + " " +
             tensor_of(of, CUDNN_ATTR_OPERATION_POINTWISE_BDESC) + " " +
             tensor_of(of, CUDNN_ATTR_OPERATION_POINTWISE_TDESC) + " to " +
             tensor_of(of, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    }
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return "graph of " + numbers_of(of, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return "plan";
    default:
      return "";
  }
}

// What an attribute of this type holds, as whole numbers.
std::int64_t number(cudnnBackendAttributeType_t type, const void* values, std::int64_t place) {
  if (type == CUDNN_TYPE_INT64) return static_cast<const std::int64_t*>(values)[place];
  if (type == CUDNN_TYPE_BOOLEAN) return static_cast<const bool*>(values)[place] ? 1 : 0;
  if (type == CUDNN_TYPE_VOID_PTR) {
    return static_cast<std::int64_t>(
        reinterpret_cast<std::intptr_t>(static_cast<void* const*>(values)[place]));
  }
  return static_cast<const int*>(values)[place];  // the enumerations
}

constexpr std::int64_t offered = 2;
int planned = 0;

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return refuses("version") ? 8907 : 91900; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_OTHER";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  std::strncpy(message, "as the stand-in was told", size);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (refuses("start")) return CUDNN_STATUS_NOT_INITIALIZED;
  static int one;
  *handle = reinterpret_cast<cudnnHandle_t>(&one);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t) {
  log("handle given back");
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor{type, {}, {}};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  auto& own = *static_cast<Descriptor*>(descriptor);
  if (own.final) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_HANDLE) return CUDNN_STATUS_SUCCESS;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t place = 0; place < count; ++place) {
      const auto* part = static_cast<const Descriptor*>(
          static_cast<const cudnnBackendDescriptor_t*>(values)[place]);
      const bool engine = part->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
      if (!part->final && !engine) return CUDNN_STATUS_BAD_PARAM;
      own.parts[name] = part;
    }
    own.numbers[name] = {count};
    return CUDNN_STATUS_SUCCESS;
  }
  for (int64_t place = 0; place < count; ++place) {
    own.numbers[name].push_back(number(type, values, place));
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  auto& own = *static_cast<Descriptor*>(descriptor);
  const auto mode = own.numbers.find(CUDNN_ATTR_POINTWISE_MODE);
  const bool exponential =
      own.type == CUDNN_BACKEND_POINTWISE_DESCRIPTOR && mode->second.front() == CUDNN_POINTWISE_EXP;
  if (exponential && refuses("softmax")) return CUDNN_STATUS_NOT_SUPPORTED;
  if (own.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && refuses("heuristics")) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  if (own.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    if (refuses("engines") || (refuses("first") && planned++ == 0)) {
      log("plan refused");
      return CUDNN_STATUS_NOT_SUPPORTED;
    }
  }
  own.final = true;
  const std::string line = described(own);
  if (!line.empty()) log(line);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t, int64_t* count,
                                       void* values) {
  *count = name == CUDNN_ATTR_ENGINEHEUR_RESULTS ? offered : 1;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) *static_cast<int64_t*>(values) = 4096;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t,
                                  cudnnBackendDescriptor_t pack) {
  if (refuses("execute")) return CUDNN_STATUS_NOT_SUPPORTED;
  const auto& own = *static_cast<const Descriptor*>(pack);
  std::string line = "execute " + numbers_of(own, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) +
                     " workspace " + numbers_of(own, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const auto& addresses = own.numbers.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (std::size_t place = 0; place < 4; ++place) line += " " + std::to_string(addresses[place]);
  // The caller passed this address as a number.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  line += " scale " + std::to_string(*reinterpret_cast<const float*>(addresses[4]));
  log(line);
  return CUDNN_STATUS_SUCCESS;
}
}
