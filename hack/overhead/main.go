package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status, err := measure(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "overhead:", err)
		status = statusBelow
	}
	os.Exit(status)
}

// The statuses that the program ends with; go run ends with 1 for both that are not 0, and says which it was.
const (
	statusReached   = 0
	statusBelow     = 1 // also when something failed
	statusUndecided = 2
)

type options struct {
	bound               float64
	cycles, first, most int
	clients, output     int
	input               int
	hidden, layers      int
	scrape              time.Duration
	seed                uint64
}

func (o options) validate() error {
	switch {
	case !(o.bound > 0 && o.bound < 1):
		return fmt.Errorf("--bound is %v: give more than 0 and less than 1", o.bound)
	case o.cycles < 4 || o.clients < 1 || o.output < 1 || o.input < 1:
		return errors.New("--cycles must be at least 4, --clients, --input-len and --output-len at least 1")
	case o.first < 2 || o.most < o.first:
		return fmt.Errorf("--first-look is %d and --most %d: give 2 generations or more, and not fewer for the last look", o.first, o.most)
	}
	return nil
}

func measure(ctx context.Context) (status int, err error) {
	var o options
	flag.Float64Var(&o.bound, "bound", 0.99, "what off ÷ on has to reach")
	flag.IntVar(&o.cycles, "cycles", 40, "rounds of each engine in a generation")
	flag.IntVar(&o.first, "first-look", 24, "generations before the bounds are looked at; with fewer they are narrower than they say")
	flag.IntVar(&o.most, "most", 72, "generations at most")
	flag.IntVar(&o.clients, "clients", 8, "requests of a round, all in flight at once")
	flag.IntVar(&o.input, "input-len", 32, "tokens of a prompt")
	flag.IntVar(&o.output, "output-len", 64, "tokens of an answer")
	flag.IntVar(&o.hidden, "hidden-size", 256, "width of the model")
	flag.IntVar(&o.layers, "layers", 4, "layers of the model")
	flag.DurationVar(&o.scrape, "scrape", 5*time.Second, "time in rounds between two scrapes")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64(), "of prompts, orders and the bootstrap")
	flag.Parse()
	if err := o.validate(); err != nil {
		return statusBelow, err
	}
	fmt.Printf("seed %d\n", o.seed)
	site, err := prepare(ctx, o)
	if err != nil {
		return statusBelow, err
	}
	defer func() { err = errors.Join(err, site.remove()) }()

	looks := looksOf(o.first, o.most)
	rng := rand.New(rand.NewPCG(o.seed, 1))
	var done []generation
	for _, look := range looks {
		for len(done) < look {
			g, err := site.generation(ctx, rng)
			if err != nil {
				return statusBelow, err
			}
			done = append(done, g)
			fmt.Printf("generation %d of at most %d: %s\n", len(done), o.most, g)
		}
		found := judge(done, o.bound, resamples, o.seed)
		fmt.Print(found)
		switch found.verdict {
		case reached:
			return statusReached, nil
		case below:
			return statusBelow, fmt.Errorf("telling costs more than %.4g of the throughput", 1-o.bound)
		case undecided:
		}
	}
	fmt.Printf("undecided: %d generations of %d cycles can't tell whether %v is reached; run it on a calmer machine, or with a larger --most or --cycles\n",
		len(done), o.cycles, o.bound)
	return statusUndecided, nil
}
