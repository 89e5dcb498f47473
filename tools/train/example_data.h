// The data of train --examples: prompts and what is to follow them, an example in each row.
#pragma once

#include "tools/train/data.h"

namespace tg {

std::vector<train::Example> encode_examples(const std::string& file, const BaseModel& base);
// The most tokens in a row that one of them needs.
std::int64_t longest_example(const std::vector<train::Example>& examples);
// Throws as read_examples and ExampleBatches, and Error if a resumed run was started with other data.
std::unique_ptr<TrainData> open_examples(const DataOptions& o, const std::optional<SavedData>& saved);

}  // namespace tg
