// Package safetensors reads and writes the safetensors file format: tensors by name, in one file or in several with an
// index. It owns the checks of hostile headers and the conversion of stored types to float32. It knows no model and no
// device. engine/model calls it.
package safetensors
