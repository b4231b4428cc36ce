package grammar

// A configuration whose loops have finished fewer rounds can do all that one with more can, once both have done the
// least: what is left of the most is larger, and everything else is the same. The one with more is then left out, so
// that `(a|aa){1,1000}` has one configuration after any number of letters and not one per way to group them.

// coverDepth is how many loops around a configuration are compared.
const coverDepth = 4

// shape is a configuration without the counts of its innermost loops.
type shape struct {
	node  int32
	loops [coverDepth]int32 // ret of the frames, -1: none
	rest  *frame            // below them
}

// counted is a configuration with the counts that its shape lacks.
type counted struct {
	configuration
	counts [coverDepth + 1]int32
}

// dropCovered leaves out the configurations that another one covers.
func dropCovered(n *nfa, found []configuration) []configuration {
	groups := make(map[shape][]counted, len(found))
	several := false
	for _, c := range found {
		key, counts := shape{node: c.node, rest: c.under}, counted{configuration: c}
		counts.counts[0] = c.count
		for i := range key.loops {
			key.loops[i] = -1
			if f := key.rest; f.parent != nil && n.nodes[f.ret].loop != nil {
				key.loops[i], counts.counts[i+1], key.rest = f.ret, f.count, f.parent
			}
		}
		groups[key] = append(groups[key], counts)
		several = several || len(groups[key]) > 1
	}
	if !several {
		return found
	}
	kept := found[:0]
	for key, group := range groups { // in any order: they are sorted afterwards
		for i := range group {
			covered := false
			for j := range group {
				covered = covered || i != j && key.covers(n, &group[j].counts, &group[i].counts)
			}
			if !covered {
				kept = append(kept, group[i].configuration)
			}
		}
	}
	return kept
}

// covers reports whether a configuration with the counts a can do all that one with the counts b can. The counts differ.
func (k *shape) covers(n *nfa, a, b *[coverDepth + 1]int32) bool {
	for i := range a {
		if a[i] == b[i] {
			continue
		}
		at := k.node
		if i > 0 {
			at = k.loops[i-1]
		}
		if l := n.nodes[at].loop; a[i] > b[i] || a[i] < l.min {
			return false
		}
	}
	return true
}
