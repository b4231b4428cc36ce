// Package rankpb is the generated form of rank.proto, the protocol between the API process and a rank. Only engine/rank
// uses it.
package rankpb

//go:generate go run ../../../hack/tool run buf generate
