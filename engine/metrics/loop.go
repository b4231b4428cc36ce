package metrics

import "github.com/sluice-dev/sluice/engine/scheduler/report"

// loopCounters count what the scheduler's loop does.
type loopCounters struct {
	iterations, idle, cpu CounterSeries
	stages                [report.NumLoopStages][report.NumForwardOverlaps]CounterSeries
	make                  func(report.LoopStage, report.ForwardOverlap) CounterSeries
}

// newLoopCounters makes the series, those of the stages without overlap alone: a series with some comes with its first time.
func newLoopCounters(m *Scheduler) loopCounters {
	c := loopCounters{iterations: m.counter(loopIterations), idle: m.counter(loopIdle), cpu: m.counter(loopCPU)}
	c.make = func(s report.LoopStage, o report.ForwardOverlap) CounterSeries {
		return m.counter(loopStages, Label{"category", s.String()}, Label{"forward_overlap", o.String()})
	}
	for s := range c.stages {
		c.stages[s][report.OverlapNone] = c.make(report.LoopStage(s), report.OverlapNone)
	}
	return c
}

// LoopTime adds what the loop did.
func (m *Scheduler) LoopTime(t report.LoopTime) {
	c := &m.loop
	c.iterations.Add(float64(t.Iterations))
	c.cpu.Add(seconds(t.CPUNanos))
	if t.IdleNanos > 0 {
		c.idle.Add(seconds(t.IdleNanos))
	}
	for s := range t.StageNanos {
		for o, nanos := range t.StageNanos[s] {
			if nanos == 0 {
				continue
			}
			if c.stages[s][o] == nil {
				c.stages[s][o] = c.make(report.LoopStage(s), report.ForwardOverlap(o))
			}
			c.stages[s][o].Add(seconds(nanos))
		}
	}
}
