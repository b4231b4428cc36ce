package observe

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// kvWorld is a service whose engines hand KV over, with the truth in integers.
type kvWorld struct {
	random *rand.Rand
	pods   []kvPod
	true   []kvReading // of each pod, now
	acks   []ack       // on their way from a receiver to a sender
	law    kvLaw
	now    time.Time
}

// ack tells the sender, some time later, that a receiver has everything, or is lost, and then the hand-over failed for it.
type ack struct {
	sender int
	bytes  float64
	at     time.Time
	lost   bool
}

func newKVWorld(seed uint64) *kvWorld {
	w := &kvWorld{random: rand.New(rand.NewPCG(seed, 1)), now: epoch}
	for i, role := range []v1alpha1.Role{v1alpha1.RolePrefill, v1alpha1.RolePrefill, v1alpha1.RoleDecode, v1alpha1.RoleDecode, v1alpha1.RoleDecode} {
		w.pods = append(w.pods, kvPod{name: fmt.Sprint("pod-", i), uid: types.UID(fmt.Sprint(i)), role: role})
		// Engines have lived before the operator looks.
		w.true = append(w.true, kvReading{sent: KVBytes{Done: float64(w.random.IntN(1e9)), Known: true}, received: KVBytes{Done: float64(w.random.IntN(1e9)), Known: true}})
	}
	return w
}

// second lets a second pass: hand-overs end, and each pod is read once in about 15 s, at its own time.
func (w *kvWorld) second(traffic int) {
	w.now = w.now.Add(time.Second)
	for range traffic {
		bytes := float64(w.random.IntN(1e8))
		sender, receiver := w.random.IntN(2), 2+w.random.IntN(3)
		if w.random.IntN(10) == 0 {
			w.true[sender].sent.Failed += bytes
			w.true[receiver].received.Failed += float64(w.random.IntN(int(bytes) + 1))
			continue
		}
		w.true[receiver].received.Done += bytes
		w.acks = append(w.acks, ack{sender, bytes, w.now.Add(time.Duration(w.random.IntN(3)) * time.Second), w.random.IntN(20) == 0})
	}
	var later []ack
	for _, a := range w.acks {
		switch {
		case a.at.After(w.now):
			later = append(later, a)
		case a.lost:
			w.true[a.sender].sent.Failed += a.bytes
		default:
			w.true[a.sender].sent.Done += a.bytes
		}
	}
	w.acks = later
	for i := range w.pods {
		if w.random.IntN(14) != 0 {
			continue
		}
		r := w.true[i]
		r.at = w.now
		w.pods[i].history = append(w.pods[i].history, r)
		if len(w.pods[i].history) > kvHistory {
			w.pods[i].history = w.pods[i].history[1:]
		}
		w.law.judge(w.pods, w.now, 15*time.Second)
	}
}

// TestKVLawHolds: whatever the times of the readings, a sound service breaks no law.
func TestKVLawHolds(t *testing.T) {
	for range 30 {
		seed := rand.Uint64()
		w := newKVWorld(seed)
		for s := range 900 {
			w.second(w.random.IntN(6) * (s / 200 % 2))
			if w.law.verdict.Broken != "" {
				t.Fatalf("seed %d, second %d: %s", seed, s, w.law.verdict.Broken)
			}
		}
		if !w.law.verdict.Judged || w.law.verdict.Received == 0 {
			t.Errorf("seed %d: after 15 minutes the verdict is %+v", seed, w.law.verdict)
		}
	}
}

// TestKVLawBreaks: bytes that one side alone counts are found, with their number once traffic has paused.
func TestKVLawBreaks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(*kvWorld)
		want   string
	}{
		{"DeliveredNotReceived", func(w *kvWorld) { w.true[0].sent.Done += 5e8 }, "prefill engines delivered "},
		{"ReceivedNotSent", func(w *kvWorld) { w.true[3].received.Done += 5e8 }, "decode engines received "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 10 {
				seed := rand.Uint64()
				w := newKVWorld(seed)
				for range 300 {
					w.second(w.random.IntN(4))
				}
				for range 300 {
					w.second(0) // readings without traffic: the constant is known exactly
				}
				tc.damage(w)
				for range 300 {
					w.second(0)
				}
				if !strings.HasPrefix(w.law.verdict.Broken, tc.want+"500000000 bytes") {
					t.Errorf("seed %d: the verdict is %q, want %s500000000 bytes", seed, w.law.verdict.Broken, tc.want)
				}
			}
		})
	}
}

// TestKVLawBeginsAnew: an engine that starts anew has other counters, and that breaks no law.
func TestKVLawBeginsAnew(t *testing.T) {
	w := newKVWorld(7)
	for range 300 {
		w.second(2)
	}
	w.true[1], w.pods[1] = kvReading{sent: KVBytes{Known: true}}, kvPod{name: "pod-1", uid: "again", role: v1alpha1.RolePrefill}
	for range 300 {
		w.second(2)
	}
	if v := w.law.verdict; v.Broken != "" || !v.Judged || !v.Since.After(epoch.Add(4*time.Minute)) {
		t.Errorf("the verdict is %+v", v)
	}
	for i := range w.pods[0].history {
		w.pods[0].history[i].sent.Known = false
	}
	silent := kvLaw{}
	silent.judge(w.pods, w.now, 15*time.Second)
	if silent.verdict.Judged {
		t.Error("an engine that does not export its bytes is not judged")
	}
	one := kvLaw{}
	one.judge(w.pods[:2], w.now, 15*time.Second)
	if one.verdict.Judged {
		t.Error("without a decode engine there is nothing to judge")
	}
}
