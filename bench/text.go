package bench

import (
	"math"
	"math/rand/v2"
	"strings"
)

// Writer makes the prompts of requests. The zero value takes a word for a token.
type Writer struct {
	// TokensPerWord and Overhead turn tokens into words: tokens = Overhead + words * TokensPerWord. Overhead is what the
	// chat template and special tokens add.
	TokensPerWord, Overhead float64
	// FromID and ToID, when ToID > 0, make prompts of token ids in [FromID, ToID) instead of words.
	FromID, ToID int32
	Corpus       []Prompt
}

// Prompt gives the prompt of a request. It is a function of the writer, the load's seed and the request.
func (w Writer) Prompt(seed uint64, r Request) Prompt {
	if r.Corpus >= 0 {
		return w.Corpus[r.Corpus]
	}
	prefix := random(seed, streamPrefix, r.Group)
	own := random(r.Seed, streamPrompt, r.Index)
	if w.ToID > 0 {
		ids := make([]int32, max(1, r.InputTokens))
		for i := range ids {
			rng := own
			if i < r.PrefixTokens {
				rng = prefix
			}
			ids[i] = w.FromID + rng.Int32N(w.ToID-w.FromID)
		}
		return Prompt{IDs: ids}
	}
	perWord := w.TokensPerWord
	if !(perWord > 0) {
		perWord = 1
	}
	total := max(1, int(math.Round((float64(r.InputTokens)-w.Overhead)/perWord)))
	shared := min(total, int(math.Round(float64(total)*share(r.PrefixTokens, r.InputTokens))))
	var text strings.Builder
	words(&text, prefix, shared)
	words(&text, own, total-shared)
	return Prompt{Text: text.String()}
}

func share(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// words writes so many random words, a space between any two.
func words(text *strings.Builder, rng *rand.Rand, count int) {
	for range count {
		if text.Len() > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(vocabulary[rng.IntN(len(vocabulary))])
	}
}

// vocabulary holds common words, so that a usual tokenizer takes about one token for each.
var vocabulary = strings.Fields(`
	about above across action after again air all almost along also always animal answer any apple area around
	back ball bank base bear because become bed before begin behind best better between big bird black blue boat body
	book both box boy bread bring brother build busy buy call can car care carry case cat cause center chair change
	city class clean clear close cloud coast cold color come common cook cool corn corner could count country course
	cover cross cut dance dark day deep desk door down draw dream dress drink drive dry each early earth east easy eat
	edge eight energy enough even ever every face fact fall family far farm fast father feel feet field fill find fine
	fire first fish five floor flow flower fly follow food foot for force form four free fresh friend from front fruit
	full game garden gate give glass gold good grass great green ground group grow hand happy hard hat have head hear
	heart heat heavy help here high hill hold home horse hot hour house how idea inside iron island join jump just keep
	key kind king know lake land large last late laugh law lead leaf learn left less letter level life light like line
	list little live long look low machine main make many map mark market may mean meet metal middle mile milk mind
	minute money month moon more morning most mother mountain move much music name near need never new next night nine
	north note number ocean off often oil old one only open orange order other our out over own page paint paper part
	party past path pay peace people person picture place plain plan plant play point poor power press problem produce
	pull push put question quick quiet rain reach read ready real red rest rich ride right ring river road rock room
	round rule run safe salt same sand school sea season second see seed seven shape ship short show side silver simple
	sing sister sit six sky sleep slow small smile snow soft some song soon sound south space spring square stand star
	start state stay step still stone stop store storm story street strong study such summer sun sure sweet table take
	talk tall teach team tell ten test than that there these thing think third this thought three through time today
	together tomorrow town trade train travel tree true try turn two under until use valley very village visit voice
	wait walk wall want war warm wash watch water wave way wear week well west wheel when where white whole why wide
	wild will wind window winter wish with wood word work world write year yellow yes yesterday young
`)
