// Attention maps of a model on a text, as a picture: a row of heads for each layer.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/nn/models/attention_maps.h>

namespace tg {

// `tokens`: the text of each of the L tokens.
plot::HeatMaps attention_picture(const std::vector<nn::AttentionMap>& maps,
                                 const std::vector<std::string>& tokens, const std::string& title);

// The text of a token in a picture: a space as ·, a line break as \n, an invisible character as \x07.
std::string visible_token(const std::string& token);

}  // namespace tg
