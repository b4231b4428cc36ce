package ram

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestParseMeminfo(t *testing.T) {
	tests := []struct {
		name, text          string
		wantTotal, wantFree int64
	}{
		{"usual", "MemTotal:       16384 kB\nMemFree:        1 kB\nMemAvailable:    8192 kB\nBuffers:  5 kB\n", 16384 * 1024, 8192 * 1024},
		{"empty", "", 0, 0},
		{"damaged", "MemTotal: many kB\nMemAvailable:\nMemAvailable: 9223372036854775807 kB\n", 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			total, free := parseMeminfo([]byte(test.text))
			if total != test.wantTotal || free != test.wantFree {
				t.Errorf("total %d, free %d; want %d, %d", total, free, test.wantTotal, test.wantFree)
			}
		})
	}
}

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]int64{"max\n": math.MaxInt64, "1024\n": 1024, "": math.MaxInt64, "-5": math.MaxInt64} {
		if got := parseLimit([]byte(text)); got != want {
			t.Errorf("limit %q is %d, want %d", text, got, want)
		}
	}
}

func TestMemory(t *testing.T) {
	total, free := Memory()
	if free < 0 || free > total {
		t.Errorf("%d bytes free of %d", free, total)
	}
}

func TestMemoryOfGroups(t *testing.T) {
	const (
		meminfo = "MemTotal: 1000 kB\nMemAvailable: 900 kB\n"
		kib     = 1024
	)
	tests := []struct {
		name, reason        string
		files               map[string]string
		wantTotal, wantFree int64
	}{
		{"no files", "nothing is known", map[string]string{}, 0, 0},
		{"no groups", "the machine's", map[string]string{"proc/meminfo": meminfo}, 1000 * kib, 900 * kib},
		{"2: container", "the page cache that goes first is free", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "512000\n", "sys/fs/cgroup/memory.current": "500000\n",
			"sys/fs/cgroup/memory.stat": "anon 50000\nfile 440000\nactive_file 40000\ninactive_file 400000\n",
		}, 512000, 412000},
		{"2: no limit", "max is none, whatever is used", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "500000\n",
		}, 1000 * kib, 900 * kib},
		{"2: above the machine", "a limit that can't be reached is none", map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "9000000\n", "sys/fs/cgroup/memory.current": "8500000\n",
		}, 1000 * kib, 900 * kib},
		{"2: no statistics", "all that is used counts", map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "512000\n", "sys/fs/cgroup/memory.current": "500000\n",
		}, 512000, 12000},
		{"2: damaged statistics", "as if there were none", map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "512000\n", "sys/fs/cgroup/memory.current": "500000\n",
			"sys/fs/cgroup/memory.stat": "inactive_file many\n",
		}, 512000, 12000},
		{"2: the statistics are newer", "less than nothing is not used", map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "512000\n", "sys/fs/cgroup/memory.current": "100\n",
			"sys/fs/cgroup/memory.stat": "inactive_file 200\n",
		}, 512000, 512000},
		{"2: over the limit", "nothing is free", map[string]string{
			"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "2000\n",
		}, 1000, 0},
		{"2: a service and its slice", "the group around it has the tighter limit, and another's use", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a.slice/b.service\n",
			"sys/fs/cgroup/a.slice/memory.max": "300000\n", "sys/fs/cgroup/a.slice/memory.current": "250000\n",
			"sys/fs/cgroup/a.slice/memory.stat":           "inactive_file 50000\n",
			"sys/fs/cgroup/a.slice/b.service/memory.max":  "400000\n",
			"sys/fs/cgroup/a.slice/b.service/memory.stat": "inactive_file 1000\n", "sys/fs/cgroup/a.slice/b.service/memory.current": "20000\n",
		}, 300000, 100000},
		{"1: container", "its group is the mount, though its path is the host's", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "9:cpu,cpuacct:/pod/x\n4:memory:/pod/x\n0::/pod/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "512000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000\n",
			"sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 400000\n",
		}, 512000, 412000},
		{"1: on the host", "the root has no limit, the group has", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:cpu,memory:/pod/x\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
			"sys/fs/cgroup/memory/pod/x/memory.limit_in_bytes": "400000\n", "sys/fs/cgroup/memory/pod/x/memory.usage_in_bytes": "300000\n",
			"sys/fs/cgroup/memory/pod/x/memory.stat": "total_inactive_file 100000\n",
		}, 400000, 200000},
		{"a path from outside", "it leads nowhere", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../etc\nnot a group\n",
		}, 1000 * kib, 900 * kib},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range test.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			if total, free := memory(root); total != test.wantTotal || free != test.wantFree {
				t.Errorf("total %d, free %d; want %d, %d: %s", total, free, test.wantTotal, test.wantFree, test.reason)
			}
		})
	}
}
