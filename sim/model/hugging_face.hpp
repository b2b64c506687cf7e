#pragma once

#include <string>
#include <vector>

#include "sim/model/model.hpp"

namespace moesim::model {

// Whether a document is the config.json of a checkpoint of Hugging Face's transformers: it names an
// architecture or a model type, and no format.
bool is_hugging_face_config(const Node& root);

// The model of such a config.json. `model_type` and, without it, `architectures` say which family
// it is of, that is, what its keys mean and which router it has. Sequences have 4,096 tokens, or
// max_position_embeddings if that is less. Biases and quantisation are left out, and a vision
// tower, which Model::left_out names; of a wrapper the model is that of text_config. Throws
// UsageError with file and key for a family that is not known, which lists the known ones, and for
// what a Model cannot express.
Model read_hugging_face(const Document& document);

std::vector<std::string> hugging_face_families();  // the model types, sorted

}  // namespace moesim::model
