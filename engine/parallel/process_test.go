package parallel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// childEnv holds the Config of a rank that this test binary is to be.
const childEnv = "SLUICE_PARALLEL_TEST_CHILD"

// child joins, says so and computes until it is killed or its world ends.
func child() {
	var cfg Config
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &cfg); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := Join(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("joined")
	x := make([]float32, 5000)
	for err == nil {
		err = w.TP().AllReduce(x)
	}
	os.Exit(0)
}

// TestKilledProcess kills a rank's process in the middle of sums, on the same host and on another one.
func TestKilledProcess(t *testing.T) {
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprintf("nodes=%d", nodes), func(t *testing.T) {
			all := configs(t, 2, 1, nodes)
			raw, err := json.Marshal(all[1])
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+string(raw))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			w, err := Join(ctx, all[0])
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "joined\n" {
				t.Fatalf("the other rank says %q, %v", line, err)
			}
			sums := make(chan struct{}, 1)
			ended := make(chan error, 1)
			go func() {
				x := make([]float32, 5000)
				for {
					if err := w.TP().AllReduce(x); err != nil {
						ended <- err
						return
					}
					select {
					case sums <- struct{}{}:
					default:
					}
				}
			}()
			for range 5 {
				<-sums
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			select {
			case err = <-ended:
			case <-time.After(patience):
				t.Fatal("the sum goes on without its peer")
			}
			var named *PeerError
			if !errors.As(err, &named) || named.Rank != 1 {
				t.Errorf("error %v, want one that names rank 1", err)
			}
		})
	}
}
