-- The action "lua.sluice URL" asks `sluiced serve` whether a request may pass. It sets
-- txn.sluice_status to 204 or 429, or another number if there was no answer, and
-- txn.sluice_retry_after to the seconds after which a denied client may come back.
--
-- Every header is written here: nothing that the client sends is passed on.
core.register_action("sluice", { "http-req" }, function(txn, url)
    local function header(value) return { value or "" } end
    local answer = core.httpclient():get{
        url = url,
        timeout = 500,
        headers = {
            ["x-forwarded-for"] = header(txn.f:src()),
            ["x-forwarded-host"] = header(txn.f:req_hdr("host")),
            ["x-forwarded-method"] = header(txn.f:method()),
            ["x-forwarded-uri"] = header(txn.f:url()),
        },
    }
    txn:set_var("txn.sluice_status", answer and answer.status or 0)
    local retry = answer and answer.headers and answer.headers["retry-after"]
    if retry and retry[0] then
        txn:set_var("txn.sluice_retry_after", retry[0])
    end
end, 1)
