// What Python describes a network and a forward pass with: the structures of structures.py.
#pragma once

#include "activations.h"
#include "clock.h"
#include "experts.h"
#include "visibility.h"

namespace draftwood {

struct Norm {
    const float *weight, *bias;  // bias may be null
};

// The gated delta rule in the place of attention (Yang et al. 2024, arXiv:2412.06464). What rows
// are convolved to is a query, a key, and values; as many heads of values share a key. The matrices
// of queries, keys and values give these (by key), the gate of the outputs, and the rates and steps.
// Without key dimensions it is a gated short convolution, of the products of what the first and the
// last of these give (Amini et al. 2025, arXiv:2511.23404). With skips it is a state space model
// (Mamba-2; Dao and Gu 2024, arXiv:2405.21060): nothing that is known of a value is taken off it, a
// step is its rate, keys and queries stay as they are, and what all heads gave is gated and normed.
struct Recurrence {
    int32_t key_heads, value_heads, key_dim, value_dim, kernel;  // no heads for no recurrence
    int32_t is_tiled;           // whether heads of values that share a key lie far apart
    int32_t copies;             // heads of keys that stand for one, to share its values' work
    int32_t norm_groups;        // groups of entries that are normed apart, behind skips
    const float* taps;          // [key_heads][kernel][channels], the newest row's last
    const float* tap_biases;    // [key_heads][channels], or null
    const float *decays, *steps;  // [value_heads]: below 0, and what is added to steps
    const float* skips;         // [value_heads], of a row's own values, or null
    const float* norm;          // [value_dim]; [value_heads][value_dim] behind skips
    float least_step, most_step;  // bounds of steps behind skips
    int64_t state_at, row_at;   // where its part of the memory's states and rows begins

    int heads_per_key() const { return value_heads / key_heads; }
    // Numbers of a row before its gate.
    int fed_width() const {
        return key_heads / copies * (2 * key_dim + copies * heads_per_key() * value_dim);
    }
    // The number of one of the heads of values that share a key.
    int value_head(int key_head, int i) const {
        return is_tiled ? i * key_heads + key_head : key_head * heads_per_key() + i;
    }
    int channels() const { return 2 * key_dim + heads_per_key() * value_dim; }
    // Of one key head: what it was fed, the key, and of each head what was put under it, and the
    // logarithm of what is left of the state of the block's beginning.
    int row_size() const {
        return key_dim ? channels() + key_dim + heads_per_key() * (value_dim + 1) : channels();
    }
    int state_size() const { return heads_per_key() * key_dim * value_dim; }
    int width() const { return value_heads * value_dim; }
};

// Heads of keys and values, and the dimensions of every head; the first ones are turned.
struct AttentionShape {
    int32_t num_kv_heads, head_dim, rotary_dim;
};

struct Layer {
    // each may have no weight, and then nothing is normed there; the last ones are for what is
    // added: by attention, by the network with the experts beside it, by the network alone, by the
    // experts, and by the layer's input
    Norm attention_norm, mlp_norm, query_norm, key_norm, value_norm, experts_norm,
        after_attention_norm, after_mlp_norm, after_network_norm, after_experts_norm,
        after_input_norm;
    // Queries may have a gate of as many outputs behind them. A layer without keys reads those of
    // another; one without values takes keys for them, before these are normed. The last three may
    // be missing where there are experts.
    Matrix query, key, value, output, gate, up, down;
    Experts experts;
    Matrix input_gate, input;  // see LayerInputs; by which its part is gated, and what adds it
    // of each head: the score of something that is always seen and holds nothing; null for none
    const float* sinks;
    int32_t window;  // tokens that a row sees, itself included; 0 for all
    int32_t rotary;  // which table of frequencies; -1 for none
    int32_t cached;  // whose keys and values it reads, of the layers that have them
    AttentionShape attention;  // without dimensions for the decoder's
    float scale;               // of what leaves the layer; 0 for none
    Recurrence recurrence;

    bool has_both() const { return experts.count && gate.outputs; }
    int values() const { return value.outputs ? value.outputs : key.outputs; }
};

// What is embedded of a token for every layer, and joined with a product of what enters the first
// (per-layer embeddings of Gemma 4). A layer gates its part by a product of the stream.
struct LayerInputs {
    int32_t size;  // of a layer's part; 0 for none
    float embedding_scale, scale;   // of what is embedded; of the product, which is then normed
    const StoredBlocks* embedding;  // [vocabulary][layers * size], read row by row where they lie
    Matrix projection;
    Norm norm;  // [size]
};

// What a drafter's head has before its layers: it joins hidden states of its target. Its first
// layer reads a token and a state side by side (heads/eagle.py). A layer for multi-token prediction
// joins token and state by the product, whatever the state came from (heads/mtp.py). A head that
// reads tokens alone has a product behind their embedding instead (heads/lm.py).
struct Fusion {
    int32_t reads;          // states of the target that become one; 0 where tokens are read alone
    int32_t feeds_normed;   // whether a drafted state goes back in after the final norm
    int32_t starts_normed;  // whether the stream begins with the state as the first layer reads it
    int32_t joins_tokens;   // whether the product reads a token, normed, before the state
    const Norm* norms;      // [reads], or null
    Matrix matrix;  // [hidden][(reads + joins_tokens) * hidden], or [hidden][hidden] of tokens alone
    Norm state_norm;        // of the state that the first layer, or the product, reads
    Norm token_norm;        // of the token that the product reads
};

// Rows of a head begin with states of its target, or with what it drafted itself.
struct FusionInput {
    // [reads]: each [..][hidden], in bfloat16 or float32; null where `states` are given
    const void* const* features;
    const int64_t* feature_rows;  // [rows]: where a row's lie in each; null for 0, 1, ...
    int64_t feature_stride;       // numbers from one to the next
    int32_t is_bfloat16;          // of the features
    const float* const* states;   // [rows]: each [hidden]
    float* results;               // [wanted rows][hidden]: what goes back in
};

struct Decoder {
    int32_t hidden, heads, num_kv_heads, head_dim, rotary_dim, rotaries, vocabulary;
    int32_t encodings;       // of rows, for all matrices
    int32_t is_bfloat16;     // whether the cache and the embedding are in bfloat16, else in float32
    int32_t has_byte_cache;  // whether the cache is in bytes with scales instead
    int32_t is_layer_norm;   // whether norms take off the mean
    int32_t norms_whole_vectors;  // whether queries and keys are normed across all heads
    int32_t is_parallel;  // whether the network reads what attention reads, not what it gave
    Gating gating;
    float epsilon;
    float embedding_scale, attention_scale, residual_scale, logit_scale;
    float score_cap, logit_cap;  // 0 for none
    // a query at position p is scaled by 1 + growth * ln(1 + floor(p / every)); 0 for never
    float query_growth, growth_every;
    const float* rotary_scales;  // [rotaries]
    const float* frequencies;    // [rotaries][rotary_dim / 2], which is the most of all layers
    const void* embedding;       // [vocabulary hidden], or null where it is in codes
    Matrix embedding_codes;
    Norm norm;
    Matrix lm_head;
    const Layer* layers;
    const Fusion* fusion;  // null for a whole model
    LayerInputs inputs;

    AttentionShape attention(int layer) const {
        const AttentionShape& own = layers[layer].attention;
        if (own.head_dim) return own;
        return {num_kv_heads, head_dim, std::min(rotary_dim, head_dim)};
    }
};

// What is added to a matrix's products, up @ (down @ x).
struct LowRank {
    const bfloat16* down;  // [rank][inputs]
    const bfloat16* up;    // [tiles of the matrix][rank][LANES]
    int32_t rank, inputs;  // rank 0 for nothing
};

enum LayerMatrix { QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, LAYER_MATRICES };

struct LayerAdapter {
    LowRank matrices[LAYER_MATRICES];
};

// Rows of a pass on which an adapter acts, and on no other (marked_rows.h).
struct MarkedRows {
    const LayerAdapter* layers;  // [layers]
    const int64_t* rows;         // [count]
    const float* vectors;        // [count][hidden]: what enters the first layer
    int64_t count;
};

struct ForwardInput {
    int32_t num_sequences, rows, layers;
    // sequences at the end of which only keys and values are wanted: those of what enters the first
    // layer, in every layer
    int32_t only_keys;
    const Sequence* sequences;  // [num_sequences]
    const int64_t *tokens, *positions;  // [rows]
    const uint8_t *attention, *mlp;     // [layers]: whether they are run
    // [num_sequences], each [count][start + count - before]: whether a row sees a node of its tree
    const uint8_t* const* sees;
    float* logits;         // [wanted rows][outputs of lm_head]
    float* const* hidden;  // [layers + 1], each null or [rows][hidden]
    double* seconds;       // [threads][PARTS], added to, or null (clock.h)
    TaskTrace* trace;      // null, or how the pass is split for threads that are not there
    const FusionInput* fused;  // of a drafter's head, else null
    const float* stream;       // [rows][hidden]: what enters layer `start`; null where tokens do
    // Layers from `start` up to `stop` are run. Rows that stop before the end of the decoder give
    // the state with which they stopped, and no logits.
    int32_t start, stop;
    const MarkedRows* marked;  // null for none
};

}  // namespace draftwood
