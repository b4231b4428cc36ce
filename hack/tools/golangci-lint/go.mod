module github.com/sluice-dev/sluice/hack/tools/golangci-lint

go 1.26.0
