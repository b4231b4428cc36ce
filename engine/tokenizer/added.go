package tokenizer

// matcher finds added tokens in text: leftmost, and of those that start at one place the longest.
type matcher struct {
	nodes []matcherNode
	first [256]bool // bytes that a token starts with
}

type matcherNode struct {
	next map[byte]int32
	id   int32 // of the token that ends here, -1 when none does
}

// add puts a token in. The content is not empty.
func (m *matcher) add(content string, id int32) {
	if m.nodes == nil {
		m.nodes = []matcherNode{{id: -1}}
	}
	m.first[content[0]] = true
	at := int32(0)
	for i := range len(content) {
		next, ok := m.nodes[at].next[content[i]]
		if !ok {
			next = int32(len(m.nodes))
			m.nodes = append(m.nodes, matcherNode{id: -1})
			if m.nodes[at].next == nil {
				m.nodes[at].next = map[byte]int32{}
			}
			m.nodes[at].next[content[i]] = next
		}
		at = next
	}
	m.nodes[at].id = id
}

// longest gives the longest token that text starts with, and its length; 0 when there is none.
func (m *matcher) longest(text string) (id int32, length int) {
	at := int32(0)
	for i := range len(text) {
		next, ok := m.nodes[at].next[text[i]]
		if !ok {
			break
		}
		at = next
		if m.nodes[at].id >= 0 {
			id, length = m.nodes[at].id, i+1
		}
	}
	return id, length
}

// split calls text for each part between tokens and token for each token, in order.
func (m *matcher) split(s string, text func(string), token func(id int32)) {
	if m.nodes == nil {
		if s != "" {
			text(s)
		}
		return
	}
	from := 0
	for i := 0; i < len(s); {
		if !m.first[s[i]] {
			i++
			continue
		}
		id, n := m.longest(s[i:])
		if n == 0 {
			i++
			continue
		}
		if from < i {
			text(s[from:i])
		}
		token(id)
		i += n
		from = i
	}
	if from < len(s) {
		text(s[from:])
	}
}
