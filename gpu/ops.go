package gpu

// Ops are a device's kernels. Arguments are checked by Checked, which every device wraps around its kernels: a wrong
// shape or type panics with *ShapeError. Values inside index tensors (ids, positions, pages) are the caller's to
// validate; on the host a bad one panics, and never reads or writes another tensor's memory.
//
// Unless said otherwise tensors are F32, may have a row stride, and dst may not overlap an input. n is the number of
// tokens in the step, at least 1.
type Ops interface {
	// Gather copies rows: dst[i, :] = table[ids[i], :].
	// dst [n, width], table [rows, width], ids I32 [1, n].
	Gather(dst, table, ids Tensor)

	// RMSNorm scales each row to unit root mean square: dst[i, j] = x[i, j] / sqrt(mean_j(x[i, j]^2) + eps) * weight[j].
	// dst, x [n, width], weight [1, width]. dst may be x.
	RMSNorm(dst, x, weight Tensor, eps float32)

	// MatMul applies a linear layer: dst[i, o] = sum_k x[i, k] * w[o, k].
	// dst [n, out], x [n, in], w [out, in].
	MatMul(dst, x Tensor, w Matrix)

	// RopeTable computes the rotation of each token: with a = positions[i] * invFreq[j] in float32,
	// dst[i, j] = cos(a) and dst[i, half+j] = sin(a).
	// dst [n, 2*half], positions I32 [1, n], invFreq [1, half].
	RopeTable(dst, positions, invFreq Tensor)

	// Rope rotates every head of x in place by table, pairing element j with j+half:
	// (a, b) becomes (a*cos - b*sin, b*cos + a*sin).
	// x [n, heads*headDim], table [n, headDim] from RopeTable.
	Rope(x, table Tensor, headDim int)

	// StoreKV writes each token's key and value into its page.
	// kv [pages, 2*PageSize*KVHeads*HeadDim], each row K then V, each [PageSize, KVHeads, HeadDim];
	// k, v [n, KVHeads*HeadDim].
	StoreKV(kv, k, v Tensor, at Paged)

	// Attention is causal attention of each token over positions [first, p] of its sequence, whose keys and values are in
	// kv already: p is its own position, first is 0 when window is 0, else max(0, p-window+1). Head h reads key-value
	// head h / (heads/KVHeads).
	// dst, q [n, heads*HeadDim], kv as in StoreKV. scale multiplies the scores before the softmax. window is in tokens,
	// at least 0.
	Attention(dst, q, kv Tensor, at Paged, scale float32, window int)

	// SiluMul is the gate of SwiGLU: dst = gate * sigmoid(gate) * up. All [n, width].
	SiluMul(dst, gate, up Tensor)

	// Add is dst += x. Both [n, width].
	Add(dst, x Tensor)

	// Softmax normalises each row: dst[i, j] = exp(x[i, j]) / sum_j exp(x[i, j]), computed without overflow.
	// dst, x [n, width]. dst may be x.
	Softmax(dst, x Tensor)

	// ArgMax finds each row's largest element, the lowest index on ties. dst I32 [1, n], x [n, width].
	ArgMax(dst, x Tensor)
}

// Paged says where the tokens of one step are. Token i is at position Positions[i] of sequence Sequences[i], in page
// Tables[Sequences[i], Positions[i] / PageSize], slot Positions[i] % PageSize. Entries of a table behind the last
// token's are never read, nor are those that only hold positions before the windows of a sequence's tokens: their pages
// may be gone. No two tokens of a step share a slot.
type Paged struct {
	Positions Tensor // I32 [1, n]
	Sequences Tensor // I32 [1, n]
	Tables    Tensor // I32 [sequences, maxPages]

	PageSize int // tokens
	KVHeads  int
	HeadDim  int
}

// PageElements is the number of elements of one page of one layer, keys and values.
func (p Paged) PageElements() int { return 2 * p.PageSize * p.KVHeads * p.HeadDim }
