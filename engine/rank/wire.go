package rank

import (
	"github.com/sluice-dev/sluice/engine/rank/rankpb"
	"github.com/sluice-dev/sluice/engine/request"
)

func requestToWire(r *request.Request) *rankpb.Request {
	p := r.Sampling
	w := &rankpb.Request{
		Rid:       r.RID,
		PromptIds: r.PromptIDs,
		Sampling: &rankpb.Sampling{
			MaxNewTokens: int64(p.MaxNewTokens),
			MinNewTokens: int64(p.MinNewTokens),
			Temperature:  p.Temperature,
			TopP:         p.TopP,
			TopK:         int64(p.TopK),
			Seed:         p.Seed,
			Stop:         p.Stop,
			StopTokenIds: p.StopTokenIDs,
			IgnoreEos:    p.IgnoreEOS,
		},
		LogMetrics:        r.LogMetrics,
		ReceivedWallNanos: r.ReceivedWallNanos,
	}
	if b := r.Bootstrap; b != nil {
		w.Bootstrap = &rankpb.Bootstrap{Host: b.Host, Port: int64(b.Port), Room: b.Room}
	}
	if r.Priority != nil {
		w.Priority = new(int64(*r.Priority))
	}
	return w
}

func requestFromWire(w *rankpb.Request) *request.Request {
	p := w.GetSampling()
	r := &request.Request{
		RID:       w.GetRid(),
		PromptIDs: w.GetPromptIds(),
		Sampling: request.Sampling{
			MaxNewTokens: int(p.GetMaxNewTokens()),
			MinNewTokens: int(p.GetMinNewTokens()),
			Temperature:  p.GetTemperature(),
			TopP:         p.GetTopP(),
			TopK:         int(p.GetTopK()),
			Stop:         p.GetStop(),
			StopTokenIDs: p.GetStopTokenIds(),
			IgnoreEOS:    p.GetIgnoreEos(),
		},
		LogMetrics:        w.GetLogMetrics(),
		ReceivedWallNanos: w.GetReceivedWallNanos(),
	}
	if p != nil && p.Seed != nil {
		r.Sampling.Seed = new(p.GetSeed())
	}
	if b := w.GetBootstrap(); b != nil {
		r.Bootstrap = &request.Bootstrap{Host: b.GetHost(), Port: int(b.GetPort()), Room: b.GetRoom()}
	}
	if w.Priority != nil {
		r.Priority = new(int(w.GetPriority()))
	}
	return r
}

func outputToWire(o request.Output) *rankpb.Output {
	w := &rankpb.Output{
		Rid:              o.RID,
		TokenIds:         o.TokenIDs,
		PromptTokens:     int64(o.PromptTokens),
		CachedTokens:     int64(o.CachedTokens),
		CompletionTokens: int64(o.CompletionTokens),
	}
	if f := o.Finish; f != nil {
		w.Finish = &rankpb.Finish{
			Type:                  string(f.Type),
			Outcome:               string(f.Outcome),
			MatchedToken:          f.MatchedToken,
			MatchedStop:           f.MatchedStop,
			Message:               f.Message,
			QueueNanos:            f.QueueNanos,
			ForwardEntryWallNanos: f.ForwardEntryWallNanos,
			PrefillEndWallNanos:   f.PrefillEndWallNanos,
		}
	}
	return w
}

func outputFromWire(w *rankpb.Output) request.Output {
	o := request.Output{
		RID:              w.GetRid(),
		TokenIDs:         w.GetTokenIds(),
		PromptTokens:     int(w.GetPromptTokens()),
		CachedTokens:     int(w.GetCachedTokens()),
		CompletionTokens: int(w.GetCompletionTokens()),
	}
	if f := w.GetFinish(); f != nil {
		o.Finish = &request.Finish{
			Type:                  request.FinishType(f.GetType()),
			Outcome:               request.Outcome(f.GetOutcome()),
			MatchedToken:          f.MatchedToken,
			MatchedStop:           f.GetMatchedStop(),
			Message:               f.GetMessage(),
			QueueNanos:            f.GetQueueNanos(),
			ForwardEntryWallNanos: f.GetForwardEntryWallNanos(),
			PrefillEndWallNanos:   f.GetPrefillEndWallNanos(),
		}
	}
	return o
}

func infoToWire(i Info) *rankpb.InfoReply {
	return &rankpb.InfoReply{
		Rank:                       int64(i.Rank),
		Pid:                        int64(i.PID),
		ModelId:                    i.ModelID,
		Dtype:                      i.DType,
		VocabSize:                  int64(i.VocabSize),
		NumLayers:                  int64(i.NumLayers),
		EosTokenIds:                i.EOSTokenIDs,
		ContextLength:              int64(i.ContextLength),
		PageSize:                   int64(i.PageSize),
		MaxTotalNumTokens:          int64(i.MaxTotalNumTokens),
		MaxRunningRequests:         int64(i.MaxRunningRequests),
		MaxRunningRequestsUnderSlo: int64(i.MaxRunningRequestsUnderSLO),
		WeightBytes:                i.WeightBytes,
		KvBytes:                    i.KVBytes,
	}
}

func infoFromWire(w *rankpb.InfoReply) Info {
	return Info{
		Rank:                       int(w.GetRank()),
		PID:                        int(w.GetPid()),
		ModelID:                    w.GetModelId(),
		DType:                      w.GetDtype(),
		VocabSize:                  int(w.GetVocabSize()),
		NumLayers:                  int(w.GetNumLayers()),
		EOSTokenIDs:                w.GetEosTokenIds(),
		ContextLength:              int(w.GetContextLength()),
		PageSize:                   int(w.GetPageSize()),
		MaxTotalNumTokens:          int(w.GetMaxTotalNumTokens()),
		MaxRunningRequests:         int(w.GetMaxRunningRequests()),
		MaxRunningRequestsUnderSLO: int(w.GetMaxRunningRequestsUnderSlo()),
		WeightBytes:                w.GetWeightBytes(),
		KVBytes:                    w.GetKvBytes(),
	}
}
